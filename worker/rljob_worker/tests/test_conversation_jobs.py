"""Whole jobs of conversations: one that is killed in the middle of a game ends like one that was not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.tests.jobs import CPU, Run, make_job, run_job
from rljob_worker.tests.metrics import samples, without_times
from rljob_worker.tests.test_asynchronous import checkpoint_digest

PLAY = '''
import asyncio
import os
import signal
from pathlib import Path

from rljob_worker.tests.fault_injection import await_commit

FOLDER = Path(__file__).parent


async def play(task, policy, world):
    """Three turns with a maze that remembers and dice that do not; the first attempt is killed in step 3."""
    await world.call("maze", {"seed": task.seed}, method="reset")
    await policy.chat(max_tokens=4)
    for turn in range(2):
        seen = await world.call("maze", {"text": policy.messages[-1]["content"]}, method="step")
        world.reward(seen.value["reward"])
        rolled = await world.call("dice", {"faces": 6 + turn})
        marker = FOLDER / "crashed"
        if turn == 1 and not marker.exists() and any(FOLDER.glob("**/journals/step-00000003")):
            marker.touch()
            await asyncio.to_thread(await_commit, 2)
            os.kill(os.getpid(), signal.SIGKILL)
        await policy.chat([{"role": "user", "content": f"{seen.value['text']} {rolled.value}"}], max_tokens=4)


class Maze:
    def reset(self, seed):
        self.place = seed % 7
        return self.place

    def step(self, text):
        self.place += len(text)
        return {"text": f"place {self.place}", "reward": self.place % 3}


def dice(faces: int, call_key: str) -> int:
    """Roll.

    Args:
        faces: of the die
    """
    with (FOLDER / "calls.log").open("a") as log:
        log.write(f"{call_key}\\n")
    return sum(call_key.encode()) % faces


def rewarded(row):
    return row["environment_reward"] + len(set(row["response"])) / 100
'''

CONVERSATION = {
    "run": "play:play",
    "maxTurns": 4,
    "concurrency": 8,
    "confinement": "Off",
    "tools": [{"run": "play:dice"}],
    "environments": [{"name": "maze", "run": "play:Maze"}],
}

OF_CONVERSATIONS = ("conversation/", "partial/", "sampling/", "response_length/", "tokens/", "response/", "reward/")
APART = [
    {"name": "rollout", "replicas": 2, "accelerator": CPU},
    {"name": "train", "accelerator": CPU},
]


def conversation_job(tiny: Path, **spec: Any) -> dict[str, Any]:
    fields = {
        "workerGroups": [{"name": "train", "accelerator": CPU | {"count": 2}}],
        "rollout": {"maxResponseTokens": 100, "conversation": CONVERSATION},
        "rewards": [{"name": "world", "run": "play:rewarded", "column": "environment_reward"}],
        "checkpoint": {"everySteps": 2},
        "stop": {"steps": 4},
    }
    job = make_job(tiny, **fields | spec)
    del job["spec"]["data"]["validation"]
    return job


def run_in(folder: Path, job: dict[str, Any], *, crashes: bool) -> Run:
    folder.mkdir()
    (folder / "play.py").write_text(PLAY)
    if not crashes:
        (folder / "crashed").touch()
    run = run_job(job, folder, timeout_seconds=8 * TEST_TIMEOUT_SECONDS)
    assert run.code == 0, run.output + run.logs
    return run


def carried_job(tiny: Path, algorithm: str, *, staleness: int = 0, **spec: Any) -> dict[str, Any]:
    """Its conversations go on in later steps; with a staleness they are played in a group of its own."""
    fields = {"algorithm": {"name": algorithm, "groupSize": 4, "kl": {"coefficient": 0.0}}}
    if staleness:
        fields |= {"workerGroups": APART, "dag": {"stages": _stages(algorithm)}}
    job = conversation_job(tiny, **fields | spec)
    job["spec"]["rollout"] |= {"partial": {"tokensPerRound": 5, "maxCarries": 3}, "maxStaleness": staleness}
    return job


def _stages(algorithm: str) -> list[dict[str, Any]]:
    """The algorithm's own, in two groups."""
    source = "sample" if algorithm == "DAPO" else "rollout"
    stages = [{"name": source, "run": source.capitalize(), "models": ["actor"], "group": "rollout"}]
    if source == "rollout":
        stages.append({"name": "reward", "run": "Reward", "after": ["rollout"], "group": "rollout"})
    advantage = {"run": "Advantage", "after": [stages[-1]["name"]], "group": "train"}
    update = {"run": "UpdatePolicy", "models": ["actor"], "after": ["advantage"], "group": "train"}
    return [*stages, {"name": "advantage", **advantage}, {"name": "update", **update}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "carries", "staleness"), [("GRPO", False, 0), ("DAPO", True, 0), ("DAPO", True, 1)]
)
def test_a_job_that_is_killed_in_the_middle_of_a_game_ends_like_one_that_is_not(
    tiny, tmp_path, algorithm, carries, staleness
):
    if carries:
        job = carried_job(tiny, algorithm, staleness=staleness)
    else:
        job = conversation_job(tiny, algorithm={"name": algorithm, "groupSize": 4, "kl": {"coefficient": 0.0}})
    whole = run_in(tmp_path / "whole", job, crashes=False)
    killed = run_in(tmp_path / "killed", job, crashes=True)
    assert "restart 1 of 3, from the checkpoint of step 2" in killed.output
    assert checkpoint_digest(killed.directory) == checkpoint_digest(whole.directory)
    steps = [[step for step in run.metrics if step["step"]] for run in (whole, killed)]
    for one, other in zip(*steps, strict=True):
        for name in ("tokens/response_total", "conversation/world_tokens", "reward/mean", "conversation/turns_mean"):
            assert one[name] == other[name], name
    assert steps[1][2]["conversation/trajectories_replayed"] > 0
    assert all(step["conversation/failed_fraction"] == 0 for run in steps for step in run)
    # a call is made once; those without an answer when the job was killed are made again with their key
    calls = [Counter((run.directory.parents[1] / "calls.log").read_text().split()) for run in (whole, killed)]
    assert set(calls[1]) == set(calls[0]) and max(calls[0].values()) == 1
    again = [key for key, number in calls[1].items() if number > 1]
    assert len(again) <= 2 * CONVERSATION["concurrency"]
    if carries:
        assert all(step["partial/rows_unfinished"] > 0 for step in steps[0])
        assert max(step["partial/age_max"] for step in steps[0]) > 0
    else:
        assert all(key.startswith("step-3/") for key in again)
    left = sorted(path.name for path in (killed.directory / "journals").iterdir())
    assert left in (["step-00000003", "step-00000004"], ["step-00000004"]), left


@pytest.mark.slow
def test_ranks_and_placement_change_no_conversation_that_goes_on_in_later_steps(tiny, tmp_path):
    """Weights of other numbers of ranks differ in last digits, and conversations in none of their tokens."""
    one = carried_job(tiny, "GRPO", workerGroups=[{"name": "train", "accelerator": CPU}])
    two = carried_job(tiny, "GRPO", workerGroups=APART, dag={"stages": _stages("GRPO")})
    alone, apart = (run_in(tmp_path / name, job, crashes=False) for name, job in (("one", one), ("two", two)))
    assert all(step["partial/rows_unfinished"] > 0 for step in alone.metrics if step["step"])
    for step, result in zip(figures_of(alone), figures_of(apart), strict=True):
        assert result == pytest.approx(step)
    common = samples(alone).keys() & samples(apart).keys()
    assert {key[0] for key in common} == {1, 2, 3, 4}
    assert {key: samples(apart)[key] for key in common} == {key: samples(alone)[key] for key in common}


def figures_of(run: Run) -> list[dict[str, float]]:
    """What follows from the conversations of each step."""
    steps = [step for step in without_times(run.metrics) if step["step"]]
    return [{name: value for name, value in step.items() if name.startswith(OF_CONVERSATIONS)} for step in steps]


def test_a_job_of_conversations_runs_and_says_who_said_what(tiny, tmp_path):
    job = conversation_job(tiny, stop={"steps": 1}, workerGroups=[{"name": "train", "accelerator": CPU}])
    run = run_in(tmp_path / "run", job, crashes=False)
    assert '"role": "assistant"' in (run.directory / "samples.jsonl").read_text()
    (step,) = [step for step in run.metrics if step["step"] == 1]
    assert step["conversation/turns_mean"] == 3 and step["conversation/tool_calls"] == 5
    assert step["mismatch/probs_diff_max"] < 1e-4
