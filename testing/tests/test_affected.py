"""Tests of which tests a change reaches."""

from pathlib import Path

import grimp
import pytest

from testing.affected import module_of, reached

FILES = (
    "crds/rljob_api/a.py",
    "crds/rljob_api/tests/test_a.py",
    "worker/rljob_worker/b.py",
    "worker/rljob_worker/b/pages/page.html",
    "worker/rljob_worker/b/tests/test_b.py",
    "worker/rljob_worker/tests/test_other.py",
    "e2e/test_e2e.py",
    "tests/test_repository.py",
)


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("crds/rljob_api/a.py", ["crds/rljob_api/tests/test_a.py", "worker/rljob_worker/b/tests/test_b.py"]),
        ("worker/rljob_worker/b.py", ["worker/rljob_worker/b/tests/test_b.py"]),
        ("worker/rljob_worker/b/pages/page.html", ["worker/rljob_worker/b/tests/test_b.py"]),
        ("worker/rljob_worker/tests/test_other.py", ["worker/rljob_worker/tests/test_other.py"]),
        ("worker/rljob_worker/deleted.py", []),
        ("pyproject.toml", ["tests/test_repository.py"]),
        ("docs/index.md", ["tests/test_repository.py"]),
        ("e2e/jobs.py", []),
    ],
)
def test_a_change_reaches_the_tests_that_import_it(tmp_path: Path, changed: str, tests: list[str]) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert reached([changed], graph(), tmp_path) == tests


def test_modules_of_files() -> None:
    assert module_of("client/rljob/__init__.py") == "rljob"
    assert module_of("crds/rljob_api/checks/step.py") == "rljob_api.checks.step"
    assert module_of("crds/elsewhere/step.py") is None
    assert module_of("charts/values/rendering.py") is None


def graph() -> grimp.ImportGraph:
    """test_b imports b, which imports a; test_a imports a; test_other imports nothing."""
    drawn = grimp.ImportGraph()
    imports = [
        ("rljob_api.tests.test_a", "rljob_api.a"),
        ("rljob_worker.b.tests.test_b", "rljob_worker.b"),
        ("rljob_worker.b", "rljob_api.a"),
    ]
    drawn.add_module("rljob_worker.tests.test_other")
    for importer, imported in imports:
        drawn.add_import(importer=importer, imported=imported)
    return drawn
