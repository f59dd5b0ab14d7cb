"""An optimizer, a tracker and a rollout engine of other packages, each an entry point and a module or two."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import rljob
from rljob_api.tests.packages import installed, make_package
from rljob_worker.rehearsal.machine.tracker_logins import unreachable_trackers
from rljob_worker.tests.jobs import CPU, make_job, run_job

LION = '''
"""Lion (Chen et al. 2023, https://arxiv.org/abs/2302.06675)."""
from rljob_api.catalogue.optimizers import DeclaredOptimizer, OptimizerState

LION = DeclaredOptimizer("Lion", (OptimizerState("exp_avg"),), "rljob_lion:lion")

def lion(states, settings):
    from rljob_worker.engines.fsdp.optimizer import ByRows
    return ByRows(states, settings, step)

def step(weights, gradient, states, now):
    mean, (beta1, beta2) = states["exp_avg"], now.betas
    update = (beta1 * mean + (1 - beta1) * gradient).sign()
    weights.mul_(1 - now.learning_rate * now.weight_decay).sub_(update, alpha=now.learning_rate)
    mean.lerp_(gradient, 1 - beta2)
'''

LINES = """
import json
from rljob_api.catalogue.trackers import DeclaredTracker

LINES = DeclaredTracker("Lines", "rljob_lines:Lines", unreachable="rljob_lines:missing")

def missing(environment):
    return None if "LINES" in environment else "Lines has no variable LINES"

class Lines:
    def __init__(self, run):
        self.file = (run.directory / "lines.jsonl").open("a")

    def log(self, step, metrics, samples):
        self.file.write(json.dumps({"step": step, "loss": metrics.get("update/loss")}) + "\\n")

    def upload(self, path, name):
        pass

    def cut_back(self, step):
        pass

    def close(self, *, failed=False):
        self.file.close()
"""

ECHO = """
from rljob_api.catalogue.rollout_engines import DeclaredRolloutEngine, Temperatures

ECHO = DeclaredRolloutEngine(
    "Echo", "rljob_echo_engine:build", Temperatures(1e-6, 1e6, "it would not"), precisions=("Float32",),
    options=("enforce_eager",), borrows_weights=True,
)
"""
ECHO_ENGINE = """
import os, pathlib
from rljob_worker.engines.rollout_builders import transformers_engine

def build(plan, engine, device, trained_by, mesh, is_loaded_next):
    pathlib.Path(os.environ["ECHO_FILE"]).write_text(engine.library)
    return transformers_engine(plan, engine, device, trained_by, mesh, is_loaded_next)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    make_package(site, "rljob-lion", {"rljob_lion.py": LION}, optimizers="Lion = rljob_lion:LION")
    make_package(site, "rljob-lines", {"rljob_lines.py": LINES}, trackers="Lines = rljob_lines:LINES")
    files = {"rljob_echo.py": ECHO, "rljob_echo_engine.py": ECHO_ENGINE}
    make_package(site, "rljob-echo", files, rollout_engines="Echo = rljob_echo:ECHO")
    return site


def job_of(tiny: Path, **more: str) -> dict:
    return make_job(
        tiny,
        training={"learningRate": 1e-4, "precision": "Float32", "optimizer": {"name": "Lion"}},
        monitoring={"trackers": ["Lines"]},
        rollout={"maxResponseTokens": 6, "engine": "Echo"},
        workerGroups=[{"name": "train", "accelerator": CPU}],
        validation={"maxRows": 2},
        **more,
    )


def test_a_job_with_parts_of_other_packages_is_planned_where_they_are_installed(site: Path, tiny: Path) -> None:
    job = job_of(tiny)
    named = {"spec.training.optimizer.name", "spec.monitoring.trackers[0]", "spec.rollout.engine"}
    assert {item.path for item in rljob.validate(job, folder=tiny)} == named
    with installed(site):
        assert rljob.validate(job, folder=tiny) == []
        planned = rljob.plan(job, folder=tiny)
        assert list(unreachable_trackers(["Lines"], {})) == ["Lines has no variable LINES"]
        assert list(unreachable_trackers(["Lines"], {"LINES": "1"})) == []
    assert planned.engine("rollout/actor").library == "Echo"


@pytest.mark.slow
def test_it_runs(site: Path, tiny: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = run_job(job_of(tiny), tmp_path, PYTHONPATH=path, ECHO_FILE=str(tmp_path / "built"))
    assert run.code == 0, run.output + run.logs
    assert (tmp_path / "built").read_text() == "Echo"
    lines = [json.loads(line) for line in (run.directory / "lines.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines][-2:] == [1, 2]
    (metadata,) = (run.directory / "checkpoints").glob("*/engines/*/.metadata")
    assert b"exp_avg" in metadata.read_bytes() and b"exp_avg_sq" not in metadata.read_bytes()
