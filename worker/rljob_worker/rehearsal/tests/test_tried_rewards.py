"""Rewards are called on the first rows of the data before a job starts: what would end it there is said."""

import pytest

from rljob_worker.cli.validate import verdict_on
from rljob_worker.rehearsal.functions import imports
from rljob_worker.rehearsal.functions.importing_process import ImportingProcess
from rljob_worker.rehearsal.tests.good_job import write
from rljob_worker.rehearsal.tests.warm_imports import WarmImporting

REWARDS = """
import asyncio, os, sys, time

def good(row):
    assert row["reference"] == row["answer"] and row["source"] == "train" and row["num_response_tokens"]
    print("printed" * 1000)
    return float(row["response"] == row["answer"])

async def good_later(row):
    await asyncio.sleep(0)
    return {"reward": 1.0, "length": 3}

def of_lists(completions, answer, **kwargs):
    return [1.0 for _ in completions]

def raises(row):
    return 1 / 0

def no_number(row):
    return float("nan")

def text(row):
    return "good"

def absent(row):
    import a_package_that_is_not_here

async def raises_later(row):
    raise RuntimeError("the judge is away" + chr(0xD83D))

def too_many(completions, **kwargs):
    return [1.0, 0.0]

def one_number(completions, **kwargs):
    return 1.0

def steps(row):
    return 1.0

def some(row):
    return {"0": 1.0}[row["response"]]

def hangs(row):
    time.sleep(60)

def ends(row):
    os._exit(3)

def of_run(row):
    return float(os.path.isdir(os.environ["RLJOB_RUN_DIR"]))
"""


@pytest.fixture(autouse=True)
def imports_in_forks(monkeypatch):
    monkeypatch.setattr(ImportingProcess, "start", lambda _, environment: WarmImporting(environment))


def tried(folder, *names, **fields):
    rewards = [{"name": name, "run": f"mine:{name}", "column": "answer", **fields} for name in names]
    return verdict_on(write(folder, {"mine.py": REWARDS}, {"rewards": rewards}), ())


def test_every_reward_that_fails_on_all_rows_is_named_with_what_it_returned(tmp_path, capfd):
    names = ("raises", "no_number", "text", "absent", "raises_later", "too_many", "one_number")
    problems = tried(tmp_path, "good", *names, "good_later", "of_lists").problems
    assert [item.found for item in problems] == [f"mine:{name}" for name in names]
    said = [item.message.partition(", tried on row 1 of the data")[0] for item in problems]
    assert said[0].startswith('reward "raises" raised ZeroDivisionError: division by zero at ')
    assert said[0].endswith("mine.py:17 in raises: return 1 / 0")
    assert said[1:3] == [
        'reward "no_number" returned nan, not a number or a dict with `reward` that is finite',
        "reward \"text\" returned str 'good', not a number or a dict with `reward`",
    ]
    assert "ModuleNotFoundError: No module named 'a_package_that_is_not_here'" in said[3]
    assert "raised RuntimeError: the judge is away\\ud83d at " in said[4]
    assert said[5:] == [
        'reward "too_many" returned 2 rewards for 1 completion',
        'reward "one_number" returned a float, not a list with a reward for each completion',
    ]
    assert all(item.line and item.message.endswith("; 4 of 4 rows ended so") for item in problems)
    assert "printed" not in "".join(capfd.readouterr())


def test_what_may_or_may_not_end_a_run_is_warned_of(tmp_path):
    (some,) = tried(tmp_path, "some", "good").warned
    assert some.startswith("reward \"some\" raised KeyError: '1'") and some.endswith("3 of 4 rows ended so")
    for fields in ({"onError": "Zero"}, {"onError": "Retry"}):
        verdict = tried(tmp_path, "raises", **fields)
        assert verdict.problems == () and "4 of 4 rows" in verdict.warned[0]


def test_a_reward_that_hangs_is_named_and_one_that_ends_its_process_is_a_problem(tmp_path):
    verdict = tried(tmp_path, "hangs", timeoutSeconds=0.05)
    assert verdict.problems == () and "took longer than its timeoutSeconds: 0.05" in verdict.warned[0]
    (ended,) = tried(tmp_path, "ends").problems
    assert ended.message.startswith('reward "ends" ended its process (exit code 3), tried on row 1')


def test_a_reward_may_look_for_its_run(tmp_path, monkeypatch):
    monkeypatch.delenv("RLJOB_RUN_DIR", raising=False)
    verdict = tried(tmp_path, "of_run")
    assert verdict.problems == () and not any("of_run" in line for line in verdict.warned)


def test_a_reward_that_may_take_its_time_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(imports, "TRIAL_SECONDS", 0.05)
    verdict = tried(tmp_path, "hangs", timeoutSeconds=600)
    assert verdict.problems == () and not any("hangs" in line for line in verdict.warned)


def test_a_reward_at_steps_has_to_say_them(tmp_path):
    fields = {"rewards": [{"name": "steps", "run": "mine:steps", "spread": "Steps"}]}
    fields |= {"algorithm.advantage": {"estimator": "GAE"}} | {"algorithm.name": "PPO"}
    verdict = verdict_on(write(tmp_path, {"mine.py": REWARDS}, fields), ())
    assert "returned no `step_rewards`" in verdict.text()


@pytest.mark.parametrize("fields", [{"rollout.conversation": {"confinement": "Off"}}, {"rewards.0.network": ["a:80"]}])
def test_rewards_that_look_at_what_is_not_there_yet_are_not_tried(tmp_path, fields):
    module = {"mine.py": "def score(row, scale):\n    raise ValueError\n"}
    assert "ValueError" in verdict_on(write(tmp_path, module), ()).text()
    assert "ValueError" not in verdict_on(write(tmp_path, module, fields), ()).text()


@pytest.mark.usefixtures("confining_kernel")
def test_a_confined_reward_is_tried_confined(tmp_path):
    nosy = 'def nosy(row):\n    return float(len(open("/etc/passwd").read()))\n'
    rewards = [{"name": "nosy", "run": "nosy:nosy", "confinement": "Preferred"}]
    (problem,) = verdict_on(write(tmp_path, {"nosy.py": nosy}, {"rewards": rewards}), ()).problems
    assert "raised PermissionError" in problem.message
