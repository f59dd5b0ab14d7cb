from pathlib import Path

import pytest

from mutation.table import load_modules, load_survivors

ROOT = Path(__file__).parent.parent.parent


def tables(root, modules="", survivors=""):
    (root / "mutation").mkdir()
    (root / "worker/room/tests").mkdir(parents=True)
    (root / "worker/room/module.py").touch()
    (root / "mutation/modules.toml").write_text(f"[defaults]\nmutants = 60\nat_least = 85.0\n{modules}")
    (root / "mutation/survivors.toml").write_text(survivors)
    return root


def test_every_module_and_every_test_is_there():
    modules = load_modules(ROOT)
    assert all(module.mutants >= 50 for module in modules.values())
    assert {survivor.module for survivor in load_survivors(ROOT)} <= set(modules)


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
    ],
)
def test_what_is_not_there_is_named(tmp_path, entry, message):
    with pytest.raises(ValueError, match=message):
        load_modules(tables(tmp_path, entry))


def test_every_module_draws_lots_of_its_own(tmp_path):
    root = tables(tmp_path, "".join(f'["room.{name}"]\ntests = []\nseed = 3\n' for name in ("module", "tests")))
    (root / "worker/room/tests/__init__.py").touch()
    with pytest.raises(ValueError, match="room.tests: seed 3 is that of room.module"):
        load_modules(root)


def test_a_survivor_needs_a_reason(tmp_path):
    entry = '[["room.module"]]\nscope = "f"\nline = "return a"\nchange = "a -> None"\nreason = ""'
    with pytest.raises(ValueError, match="a -> None has no reason"):
        load_survivors(tables(tmp_path, survivors=entry))
