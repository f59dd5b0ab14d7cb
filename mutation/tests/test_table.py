"""Tests of the table of modules and their tests."""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from mutation.table import load_modules, load_survivors, shipped_modules

ROOT = Path(__file__).parent.parent.parent


def tables(root, modules="", survivors="", files=()):
    """A repository with the module room.module, its tests, and more."""
    for path in ("mutation/modules.toml", "worker/room/module.py", "worker/room/tests/test_module.py", *files):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    (root / "mutation/modules.toml").write_text(f"[defaults]\nmutants = 60\nat_least = 85.0\n{modules}")
    (root / "mutation/survivors.toml").write_text(survivors)
    return root


def test_every_shipped_module_has_tests_or_a_reason_to_be_left_out():
    modules = load_modules(ROOT)
    patterns = tomllib.loads((ROOT / "mutation/modules.toml").read_text())["left_out"]
    missing = set(shipped_modules(ROOT)) - set(modules)
    assert {name for name in missing if not any(fnmatchcase(name, pattern) for pattern in patterns)} == set()
    assert len(modules) > 700 and all(module.mutants >= 50 for module in modules.values())
    assert {survivor.module for survivor in load_survivors(ROOT)} <= set(modules)


def test_a_module_without_an_entry_has_the_tests_nearest_to_it(tmp_path):
    named = ("worker/room/tests/test_other.py", "worker/room/inner/module.py", "worker/room/inner/deep/other.py")
    modules = load_modules(tables(tmp_path, files=named))
    assert {name: module.tests for name, module in modules.items()} == {
        "room.module": ("worker/room/tests/test_module.py", "worker/room/tests"),
        "room.inner.module": ("worker/room/tests/test_module.py", "worker/room/tests"),
        "room.inner.deep.other": ("worker/room/tests/test_other.py", "worker/room/tests"),
    }
    assert len({module.seed for module in modules.values()}) == 3


def test_tests_are_no_modules(tmp_path):
    tests = ("worker/conftest.py", "worker/room/conftest.py", "worker/room/tests/builders.py", "worker/room/test_x.py")
    root = tables(tmp_path, files=("worker/room/__init__.py", *tests))
    assert shipped_modules(root) == {"room": "worker/room/__init__.py", "room.module": "worker/room/module.py"}


def test_what_is_left_out_may_still_have_an_entry(tmp_path):
    root = tables(
        tmp_path,
        '["room.module"]\nseed = 3\n[left_out]\n"room.*" = "nobody can"',
        files=("worker/room/other.py",),
    )
    assert list(load_modules(root)) == ["room.module"]


def test_a_module_far_from_any_test_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no folder above crds/attic/old.py has tests; .* leave attic.old out"):
        load_modules(tables(tmp_path, files=("crds/attic/old.py",)))


def test_an_entry_is_completed_by_the_defaults(tmp_path):
    root = tables(tmp_path, '["room.module"]\ntests = ["worker/room/tests"]\nseed = 3\nat_least = 70.0')
    module = load_modules(root)["room.module"]
    assert (module.path, module.tests) == ("worker/room/module.py", ("worker/room/tests",))
    assert (module.seed, module.mutants, module.at_least) == (3, 60, 70.0)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('["room.other"]\ntests = []\nseed = 3', "no module room.other"),
        ('["room.module"]\ntests = ["worker/room/test_x.py"]\nseed = 3', "no worker/room/test_x.py"),
        ('[left_out]\n"room.nothing*" = "nobody can"', "room.nothing. is left out, and there is no such module"),
        ('[left_out]\n"room.*" = ""', "room.. is left out without a reason"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, entry, message):
    with pytest.raises(ValueError, match=message):
        load_modules(tables(tmp_path, entry))


def test_every_module_draws_lots_of_its_own(tmp_path):
    entries = "".join(f'["room.{name}"]\nseed = 3\n' for name in ("module", "other"))
    root = tables(tmp_path, entries, files=["worker/room/other.py"])
    with pytest.raises(ValueError, match="room.other: seed 3 is that of room.module"):
        load_modules(root)


def test_a_survivor_needs_a_reason(tmp_path):
    entry = '[["room.module"]]\nscope = "f"\nline = "return a"\nchange = "a -> None"\nreason = ""'
    with pytest.raises(ValueError, match="a -> None has no reason"):
        load_survivors(tables(tmp_path, survivors=entry))
