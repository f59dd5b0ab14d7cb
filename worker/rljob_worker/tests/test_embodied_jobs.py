"""Whole jobs of episodes: a policy learns which way to go, and one that is killed ends like one that is not.

The second one sees pictures and is rewarded by video (SRPO), on two workers.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from rljob_worker.embodied.mlp_files import write_mlp_policy
from rljob_worker.embodied.tests.test_video_encoders import save_vjepa2
from rljob_worker.tests.jobs import CPU, Run, make_job, run_job
from rljob_worker.tests.test_asynchronous import checkpoint_digest
from rljob_worker.tiny.acting.plane_policy import write_plane_policy

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[3] / "examples"

LINE = '''
from types import SimpleNamespace

import killing
import numpy as np


class Line:
    """A point that goes left or right by half of each action; it has succeeded beyond 0.6 on the side of its task."""

    action_space = SimpleNamespace(low=-np.ones(1, np.float32), high=np.ones(1, np.float32))

    def tasks(self):
        return [{"task": name, "instruction": f"go {name}"} for name in ("left", "right")]

    def reset(self, seed, options):
        self.way = -1.0 if options["task"] == "left" else 1.0
        self.place = np.random.default_rng(seed).uniform(-0.1, 0.1)
        kill_worker_once()
        return self.seen(), {}

    def step(self, action):
        self.place += 0.5 * float(action[0])
        return self.seen(), 0.0, False, False, {"success": self.place * self.way > 0.6}

    def seen(self):
        return np.array([self.place, self.way], np.float32)


def line():
    return Line()


def kill_worker_once():
    """In the fifth step of 64 episodes, unless that has been done or is not asked for."""
    killing.kill_worker_once(4 * 64 + 40)
'''
KILLING = '''
import os
import signal
from pathlib import Path

FOLDER = Path(__file__).parent


def kill_worker_once(after):
    """Called in the process of a simulator: the worker ends with so many resets, unless that has been done or is not
    asked for."""
    with (FOLDER / "resets").open("ab") as file:
        file.write(b".")
        number = file.tell()
    if number > after and not (FOLDER / "crashed").exists():
        (FOLDER / "crashed").touch()
        guardian = os.getppid()
        worker = int(Path(f"/proc/{guardian}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(worker, signal.SIGKILL)
'''
REACH = """
import killing
import reach_pictures
from reach_pictures import encode


class Reach(reach_pictures.Reach):
    def reset(self, seed, options):
        killing.kill_worker_once(3 * 32 + 20)
        return super().reset(seed, options)
"""

SIMULATOR = {
    "run": "line:line",
    "processes": 2,
    "environmentsPerProcess": 8,
    "maxSteps": 4,
    "actionChunk": 2,
    "settleSteps": 0,
    "evaluation": {"trials": 8},
}


def embodied_job(folder: Path, **spec: Any) -> dict[str, Any]:
    write_mlp_policy(folder / "model", state_size=2, dimensions=1, chunk=2, bins=9, hidden_size=32)
    fields: dict[str, Any] = {
        "data": {"promptColumn": "instruction", "batchSize": 16},
        "rewards": [{"name": "success", "run": "rljob_worker.rewards:environment_reward"}],
        "workerGroups": [{"name": "train", "accelerator": CPU}],
        "training": {"learningRate": 1.0e-2, "precision": "Float32", "tokensPerMicroBatch": 4096},
        "rollout": {"maxResponseTokens": 2, "simulator": SIMULATOR},
        "validation": {},
        "checkpoint": {"everySteps": 2},
        "stop": {"steps": 20},
    }
    return make_job(folder, **fields | spec)


def run_in(folder: Path, make: Callable[[Path], dict[str, Any]] = embodied_job, *, crashes: bool) -> Run:
    folder.mkdir()
    for name, text in {"line": LINE, "killing": KILLING, "reach": REACH}.items():
        (folder / f"{name}.py").write_text(text)
    shutil.copy(EXAMPLES / "reach_pictures.py", folder)
    if not crashes:
        (folder / "crashed").touch()
    run = run_job(make(folder), folder)
    assert run.code == 0, run.output + run.logs
    return run


def test_a_policy_learns_from_success_and_a_job_that_is_killed_ends_like_one_that_is_not(tmp_path: Path) -> None:
    whole = run_in(tmp_path / "whole", crashes=False)
    steps = [record for record in whole.metrics if "simulator/success" in record]
    success = [record["simulator/success"] for record in steps]
    assert len(success) == 20
    assert fmean(success[-3:]) > fmean(success[:3]) + 0.3, success
    assert steps[0]["mismatch/probs_diff_max"] < 1e-5
    assert {"simulator/success/left", "simulator/success/right"} <= set(steps[-1])
    validations = [record for record in whole.metrics if "validation/success" in record]
    first, last = validations[0], validations[-1]
    share = last["validation/success"]
    assert share > first["validation/success"] and last["validation/accuracy"] == share
    assert last["validation/success_standard_error"] == pytest.approx((share * (1 - share) / 16) ** 0.5)

    killed = run_in(tmp_path / "killed", crashes=True)
    assert "restart 1 of 3" in killed.output
    assert checkpoint_digest(killed.directory) == checkpoint_digest(whole.directory)
    again = [record for record in killed.metrics if "simulator/success" in record]
    assert [record["simulator/success"] for record in again] == success
    assert any(record["conversation/trajectories_replayed"] for record in again)


def reach_job(folder: Path, video: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A policy that knows nothing, which reaches its target now and then, on two workers. video: by default the
    example's encoder."""
    write_plane_policy(folder / "plane", 0)
    simulator = {
        "run": "reach:Reach",
        "processes": 2,
        "environmentsPerProcess": 8,
        "maxSteps": 8,
        "actionChunk": 4,
        "settleSteps": 0,
        "cameras": ["front"],
        "video": video or {"run": "reach:encode", "frames": 8},
    }
    job = embodied_job(
        folder,
        models=[{"name": "actor", "path": str(folder / "plane"), "vision": {"train": True}}],
        data={"promptColumn": "instruction", "batchSize": 8, "maxPromptTokens": 64},
        algorithm={"name": "SRPO", "groupSize": 4, "loss": {"ratio": "Decision"}},
        workerGroups=[{"name": "train", "accelerator": {"profile": "cpu", "count": 2}}],
        rollout={"maxResponseTokens": 8, "temperature": 1.6, "simulator": simulator},
        stop={"steps": 6},
        **spec,
    )
    del job["spec"]["validation"]
    return job


def test_a_policy_that_sees_is_rewarded_by_video_and_a_job_that_is_killed_ends_like_one_that_is_not(
    tmp_path: Path,
) -> None:
    whole = run_in(tmp_path / "whole", reach_job, crashes=False)
    steps = [record for record in whole.metrics if "simulator/success" in record]
    assert len(steps) == 6 and steps[0]["mismatch/probs_diff_max"] < 1e-5
    assert any(step["update/gradient_norm"] > 0 for step in steps)
    compared = [step for step in steps if step["progress/compared_fraction"] > 0]
    assert compared and all(0 < step["progress/reward_of_failures"] < 0.6 for step in compared)

    killed = run_in(tmp_path / "killed", reach_job, crashes=True)
    assert "restart 1 of 3" in killed.output
    assert checkpoint_digest(killed.directory) == checkpoint_digest(whole.directory)
    rewards = [
        [run["progress/distance"] for run in result.metrics if "progress/distance" in run] for result in (whole, killed)
    ]
    assert rewards[0] == rewards[1]


def test_a_service_of_vjepa2_rewards_as_a_model_of_the_workers_own_does(tmp_path: Path) -> None:
    model = str(save_vjepa2(tmp_path / "vjepa2"))
    encoder = {"name": "encoder", "run": "rljob_worker.services:video_encoder", "options": {"path": model}}
    own = run_in(tmp_path / "own", partial(reach_job, video={"path": model, "frames": 4}), crashes=False)
    served = partial(reach_job, video={"service": "encoder", "frames": 4}, services=[encoder])
    by_service = run_in(tmp_path / "served", served, crashes=False)
    columns = ("simulator/success", "progress/missing_fraction", "progress/compared_fraction", "progress/distance")
    rows = [
        [[step.get(name, -1.0) for name in columns] for step in run.metrics if "simulator/success" in step]
        for run in (own, by_service)
    ]
    assert len(rows[0]) == 6 and any(distance > 0 for *_, distance in rows[0])
    assert rows[1] == [pytest.approx(row, rel=1e-3) for row in rows[0]]
