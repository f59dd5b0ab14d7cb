"""Jobs that cannot learn, each for one reason: the run names it within five steps. One without a fault is silent."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.tests.timeouts import TIMEOUT_FACTOR
from rljob_worker.metrics.health import HealthMonitor, reward_weights
from rljob_worker.tests.jobs import CPU, make_job, run_job

pytestmark = pytest.mark.slow

NUM_STEPS = 5
SLOW_SECONDS = 0.15 * TIMEOUT_FACTOR
"""What a slow reward takes for a row: most of a step, also on a machine that asks for patience."""
REWARDS = (
    f"SLOW_SECONDS = {SLOW_SECONDS}\n"
    + '''
import time
import zlib

def drawn(row):
    """As likely to be high whatever a policy does, and another for each answer."""
    return zlib.crc32(f"{row['row_id']} {row['response']}".encode()) % 1000 / 1000

def same(row):
    return 1.0

def of_question(row):
    return row["row_id"] // 8 % 5 / 5

def slow(row):
    time.sleep(SLOW_SECONDS)
    return drawn(row)

def failing(row):
    if row["row_id"] % 4 == 0 and row["response"] != row["question"]:
        raise LookupError("no idea")
    return drawn(row)

def hanging(row):
    if row["row_id"] % 32 == 5:
        time.sleep(60)
    return drawn(row)
'''
)


def reward(function: str = "drawn", **fields: Any) -> dict[str, Any]:
    return {"name": function, "run": f"rewards_here:{function}", **fields}


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "all answers are right": ({"rewards": [reward("same")]}, "GroupsAlike"),
    "the reward looks at the question alone": ({"rewards": [reward("of_question")]}, "GroupsAlike"),
    "nothing is explored, so that what answers of a group teach adds up to nothing": (
        {"rollout.temperature": 0.001},
        "NoGradient",
    ),
    "a learning rate of 10": ({"training.learningRate": 10.0}, "EntropyCollapsed"),
    "a learning rate far too high beside a reference": (
        {"training.learningRate": 0.2, "algorithm.kl": {"coefficient": 1.0e-6}},
        "KLRunsAway",
    ),
    "answers without an end": ({"rollout": {"maxResponseTokens": 48}}, "ResponsesCutOff"),
    "one reward is a thousand times the other": (
        {"rewards": [reward(weight=1000.0), reward("of_question")]},
        "OneRewardDominates",
    ),
    "a reward that takes its time": ({"rewards": [reward("slow")]}, "RewardsSlow"),
    "a reward that raises": ({"rewards": [reward("failing", onError="Zero")]}, "RewardsFail"),
    "a reward that hangs": ({"rewards": [reward("hanging", timeoutSeconds=0.3)]}, "RewardsFail"),
}


def warned(tiny: Path, folder: Path, changes: dict[str, Any]) -> set[str]:
    """Names of the warnings of a run of the small job with `changes`, by path in its spec."""
    folder.mkdir(exist_ok=True)
    (folder / "rewards_here.py").write_text(REWARDS)
    job = make_job(
        tiny,
        rewards=[reward()],
        workerGroups=[{"name": "train", "accelerator": CPU}],
        algorithm={"name": "GRPO", "groupSize": 8, "kl": {"coefficient": 0.0}},
        rollout={"maxResponseTokens": 48, "stop": ["e", "t", "a"]},  # what it says has no end of its own
        stop={"steps": NUM_STEPS},
    )
    del job["spec"]["data"]["validation"], job["spec"]["validation"], job["spec"]["checkpoint"]
    job["spec"]["training"]["learningRate"] = 1.0e-6
    for path, value in changes.items():
        *parents, name = path.split(".")
        place = job["spec"]
        for parent in parents:
            place = place[parent]
        place[name] = value
    run = run_job(job, folder)
    assert run.code == 0, run.output + run.logs
    monitor = HealthMonitor(reward_weights(yaml.safe_load((folder / "job.yaml").read_text())["spec"]))
    return {warning.name for record in run.metrics for warning in monitor.observe(record)}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_within_five_steps(tiny: Path, tmp_path: Path, fault: str) -> None:
    changes, name = FAULTS[fault]
    assert name in warned(tiny, tmp_path, changes)


def test_a_job_without_a_fault_is_not_warned_of(tiny: Path, tmp_path: Path) -> None:
    assert warned(tiny, tmp_path, {}) == set()
