"""Tests of the tiers of tests."""

import subprocess
import sys
from pathlib import Path

import pytest

from testing.tiers import part_of, tiers_of

CHECKOUT = Path(__file__).parents[2]
TESTPATHS = ("worker", "e2e/cluster")
# without plugins of what is installed, which take longer to load than pytest itself
ENVIRONMENT = {"PYTHONPATH": str(CHECKOUT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
PROJECT = {
    "conftest.py": "pytest_plugins = ['testing.tiers']",
    "pytest.ini": "[pytest]\naddopts = -q -p no:cacheprovider\ntestpaths = tests",
    "tests/test_one.py": "import pytest\ndef test_quick(): pass\n@pytest.mark.slow\ndef test_long(): pass\n",
}


@pytest.mark.parametrize(
    ("file", "marks", "tiers"),
    [
        ("worker/rljob_worker/tests/test_x.py", [], ["test"]),
        ("worker/rljob_worker/tests/test_x.py", ["parametrize", "slow"], ["slow"]),
        ("e2e/test_x.py", [], ["e2e"]),
        ("e2e/cluster/tests/test_x.py", [], ["test"]),
        ("charts/tests/test_x.py", [], ["chart"]),
        ("e2e/test_x.py", ["slow"], ["slow"]),
        ("charts/tests/test_x.py", ["slow"], ["chart", "slow"]),
        ("workers/test_x.py", [], []),
    ],
)
def test_the_tier_of_a_test(file: str, marks: list[str], tiers: list[str]) -> None:
    assert tiers_of(file, marks, TESTPATHS) == tiers


@pytest.mark.parametrize("count", [1, 2, 8, 17])
def test_parts_hold_each_test_once(count: int) -> None:
    tests = list(range(20))
    parts = [tests[part_of(f"{number}/{count}")] for number in range(1, count + 1)]
    assert sorted(sum(parts, [])) == tests


@pytest.mark.parametrize("text", ["0/8", "9/8", "3", "3/0", "a/8", "3/8/1", "-1/8"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match=text):
        part_of(text)


def test_pytest_runs_a_tier(tmp_path: Path) -> None:
    assert "1 passed, 1 deselected" in pytest_in(tmp_path)
    assert "1 passed, 1 deselected" in pytest_in(tmp_path, "--tier", "all", "--part", "2/2")
    assert "1 passed" in pytest_in(tmp_path, "tests/test_one.py::test_long")
    assert "2 passed" in pytest_in(tmp_path, "--with-slow", "1/1")
    assert "1 passed, 1 deselected" in pytest_in(tmp_path, "--with-slow", "2/2")


def test_slow_tests_of_a_cluster_run_where_they_are_asked_for(tmp_path: Path) -> None:
    tests = {"e2e/test_two.py": PROJECT["tests/test_one.py"]}
    assert "1 passed, 1 deselected" in pytest_in(tmp_path, "e2e", **tests)
    assert "1 passed, 1 deselected" in pytest_in(tmp_path, "e2e", "--tier", "slow")
    assert "2 passed" in pytest_in(tmp_path, "e2e", "--with-slow", "1/1")


def test_pytest_names_a_test_without_a_tier(tmp_path: Path) -> None:
    output = pytest_in(tmp_path, "other", **{"other/test_two.py": "def test_lost(): pass"})
    assert "other/test_two.py::test_lost: in no tier: add its folder to testpaths" in output


def pytest_in(folder: Path, *arguments: str, **files: str) -> str:
    for name, text in {**PROJECT, **files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=ENVIRONMENT)
    return done.stdout + done.stderr
