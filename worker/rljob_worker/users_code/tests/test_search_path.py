"""The module search path of a job's own code."""

import os
import subprocess
import sys

import pytest

from rljob_worker.errors import InvalidJob
from rljob_worker.rewards.loading import load
from rljob_worker.users_code.function import load_function
from rljob_worker.users_code.search_path import add_to_path, code_folders, why_hidden


@pytest.fixture
def folder(tmp_path):
    for name in ("json.py", "msgspec.py", "sys.py", "own_rewards.py"):
        (tmp_path / name).write_text("def score(row):\n    return 1.0\n")
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("raise SystemExit('numpy beside a job')")
    return tmp_path


def test_folders_are_as_in_a_path():
    assert code_folders({"RLJOB_CODE": "/code:/workspace:"}) == ["/code", "/workspace"]
    assert code_folders({}) == []


def test_a_process_finds_the_jobs_modules_and_none_in_place_of_its_own(folder):
    code = (
        "from rljob_worker.users_code.search_path import add_to_path\n"
        "add_to_path(); add_to_path()\n"
        "import json, msgspec, numpy, own_rewards, sys\n"
        "print(own_rewards.__file__, sys.path.count(sys.path[-1]), hasattr(json, 'score'), hasattr(msgspec, 'score'))"
    )
    environment = {**os.environ, "RLJOB_CODE": str(folder)}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(folder / "own_rewards.py"), "1", "False", "False"], done.stderr


def test_what_is_on_the_path_already_stays_where_it_is(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/code", "/lib"])
    add_to_path({"RLJOB_CODE": "/code:/workspace"})
    assert sys.path == ["/code", "/lib", "/workspace"]


@pytest.mark.parametrize(
    ("module", "file"), [("json", "json.py"), ("msgspec.json", "msgspec.py"), ("sys", "sys.py"), ("numpy", "numpy")]
)
def test_a_module_that_is_never_found_is_named_with_what_is_found_instead(folder, module, file):
    why = why_hidden(module, {"RLJOB_CODE": str(folder)}, [*sys.path, str(folder)])
    assert why is not None and why.startswith(str(folder / file)) and "give the file another name" in why


def test_a_module_of_the_job_alone_is_found(folder):
    assert why_hidden("own_rewards", {"RLJOB_CODE": str(folder)}, [*sys.path, str(folder)]) is None
    assert why_hidden("json", {"RLJOB_CODE": str(folder.parent)}) is None


def test_our_rewards_are_ours_whatever_lies_beside_the_job(folder):
    (folder / "rljob_worker.py").write_text("")
    assert why_hidden("rljob_worker.rewards", {"RLJOB_CODE": str(folder)}) is None


def test_rewards_and_stages_of_such_a_name_are_refused(folder, monkeypatch):
    monkeypatch.setenv("RLJOB_CODE", str(folder))
    with pytest.raises(
        InvalidJob, match=r'reward "mine": json:score: .*json\.py is never found, because .json. is .*/json'
    ):
        load({"name": "mine", "run": "json:score", "column": None, "options": {}, "access": None})
    with pytest.raises(InvalidJob, match=r"stage mine: json:score: .*json\.py is never found"):
        load_function("stage mine", "json:score")
