"""The whole of it on a small repository: an overlay, forks, processes of processes, the clock."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutation.tests.builders import commit_all

PROJECT = Path(__file__).parent.parent.parent

MODULE = """
import threading

from toy import names as names


def signalled():
    event = threading.Event()
    event.set()
    return event.wait()


def doubled(number):
    return number * 2


def unseen():
    return 1
"""

TESTS = """
import os
import subprocess
import sys

from toy.module import signalled


def test_a_wait_that_ends():
    assert signalled()


def test_in_another_process():
    command = "from toy.module import doubled; import sys; sys.exit(doubled(21) != 42)"
    assert subprocess.run([sys.executable, "-c", command]).returncode == 0


def test_leaves_an_orphan():
    script = 'import subprocess; print(subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=2).pid)'
    pid = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True).stdout
    with open(os.environ["ORPHANS"], "ab") as file:
        file.write(pid)
"""

TABLE = """
[defaults]
mutants = 60
at_least = 50.0

["toy.module"]
tests = ["crds/toy/tests/test_module.py"]
seed = 1
"""

SURVIVORS = """
[["toy.module"]]
scope = "unseen"
line = "return 1"
change = "1 -> 2"
reason = "nobody calls it"
"""


@pytest.fixture
def repository(tmp_path):
    files = {
        # what the module imports lies beside it, in a package that imports the module
        "crds/toy/__init__.py": "from toy.module import doubled as doubled",
        "crds/toy/module.py": MODULE,
        "crds/toy/names.py": "",
        "crds/toy/tests/__init__.py": "",
        "crds/toy/tests/test_module.py": TESTS,
        "mutation/modules.toml": TABLE,
        "mutation/survivors.toml": SURVIVORS,
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    commit_all(tmp_path)
    return tmp_path


def mutate(repository, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "ORPHANS": str(repository / "orphans")}
    command = [sys.executable, "-m", "mutation", "--jobs", "1", *arguments]
    return subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)


def is_alive(pid):
    return Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_mutants_are_killed_or_reported(repository):
    ended = mutate(repository, "toy.mod*")
    assert ended.returncode == 1, ended.stderr
    assert (repository / "crds/toy/module.py").read_text() == MODULE
    survived = [line for line in ended.stdout.splitlines() if line.startswith("change = ")]
    # `1 -> 2` has a reason; `event.set() -> pass` is killed by the clock, those of `doubled` in another process
    assert survived == ['change = "1 -> None"', 'change = "1 -> 0"']
    # three of `signalled`, four of `doubled`, three of `unseen`
    assert ended.stdout.endswith("| toy.module | 10 | 7 | 70.0 |\n")
    orphans = (repository / "orphans").read_text().split()
    assert orphans and not any(Path(f"/proc/{pid}").exists() for pid in orphans)


@pytest.mark.slow
def test_tests_that_fail_without_a_mutant_are_no_measure(repository):
    (repository / "crds/toy/module.py").write_text(MODULE.replace("number * 2", "number * 3"))
    ended = mutate(repository, "toy.module")
    assert ended.returncode == 1
    assert "toy.module: tests fail without a mutant" in ended.stderr
    assert "FAILED crds/toy/tests/test_module.py::test_in_another_process" in ended.stderr


def test_a_module_that_is_not_there(repository):
    ended = mutate(repository, "toy.module", "toy.other", "tools.*")
    message = "no module, or left out in modules.toml: toy.other, tools.*\n"
    assert (ended.returncode, ended.stderr) == (2, message)


@pytest.mark.slow
def test_without_a_name_it_is_the_modules_that_differ_from_the_base(repository):
    assert mutate(repository).stdout.splitlines()[-1] == "|---|--:|--:|--:|"
    (repository / "crds/toy/names.py").write_text("NAME = 1\nOTHER = 2\n")
    with (repository / "crds/toy/tests/test_module.py").open("a") as tests:
        tests.write("\n\ndef test_a_name():\n    from toy.names import NAME\n\n    assert NAME == 1\n")
    ended = mutate(repository)
    # three of each name, and nobody reads the other
    assert "| toy.names | 6 | 3 | 50.0 |" in ended.stdout and "toy.module" not in ended.stdout
