"""Generation ahead of training in whole jobs: a run is a function of the job, however it is interrupted or spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljob_worker.tests.jobs import CPU, PPO, Run, make_job, run_job
from rljob_worker.tests.metrics import without_times
from rljob_worker.tests.test_resume import CRASH, checkpoint_digest

NUM_STEPS = 6
GRPO = {"name": "GRPO", "groupSize": 4, "kl": {"coefficient": 0.01}}
DAPO = {"name": "DAPO", "groupSize": 4, "kl": {"coefficient": 0.01}, "sampling": {"oversampling": 2.0, "maxRounds": 10}}
ALGORITHMS = {"GRPO": GRPO, "PPO": PPO | {"groupSize": 4}, "DAPO": DAPO}
PLACED = ("data/", "time/")
"""Metrics of who had which rows, and how long."""


def dag_of(name: str) -> dict[str, Any]:
    """The algorithm's own pipeline, with a stage that crashes before the update."""
    source = "sample" if name == "DAPO" else "rollout"
    crash = {"name": "crash", "run": "crash:once", "after": [source], "reads": ["response_ids"], "writes": ["style"]}
    update = {"after": ["advantage"], "balance": "Tokens", "group": "train"}
    stages: list[dict[str, Any]] = [
        {"name": source, "run": source.capitalize(), "models": ["actor"], "group": "rollout"},
        crash | {"group": "train"},
        {"name": "reference", "run": "LogProbs", "models": ["reference"], "after": [source], "group": "train"},
        {"name": "advantage", "run": "Advantage", "after": ["crash", "reference"], "group": "train"},
        {"name": "update", "run": "UpdatePolicy", "models": ["actor"], **update},
    ]
    if name != "DAPO":
        stages.append({"name": "reward", "run": "Reward", "after": [source], "group": "rollout"})
        stages[3]["after"].append("reward")
    if name == "PPO":
        stages.append({"name": "values", "run": "Values", "models": ["critic"], "after": [source], "group": "train"})
        stages.append({"name": "update_critic", "run": "UpdateCritic", "models": ["critic"], **update})
        stages[3]["after"].append("values")
    return {"stages": stages}


def asynchronous_job(tiny: Path, name: str, staleness: int, *, generators: int = 1, **spec: Any) -> dict[str, Any]:
    groups = [
        {"name": "rollout", "replicas": generators, "accelerator": CPU},
        {"name": "train", "accelerator": CPU | {"count": 2}},
    ]
    fields = {
        "workerGroups": groups,
        "algorithm": ALGORITHMS[name],
        "dag": dag_of(name),
        "rollout": {"maxResponseTokens": 12, "maxStaleness": staleness},
        "validation": {"maxRows": 8, "everySteps": 2},
        "stop": {"steps": NUM_STEPS},
    }
    return make_job(tiny, **fields | spec)


def run_in(folder: Path, job: dict[str, Any], *arguments: str, crashes: bool = False) -> Run:
    folder.mkdir(exist_ok=True)
    (folder / "crash.py").write_text(CRASH)
    if not crashes:
        (folder / "crashed").touch()
    run = run_job(job, folder, *arguments)
    assert run.code == 0, run.output + run.logs
    return run


def learnt(run: Run) -> Any:
    """All that a run came to, whoever had which rows."""
    samples = sorted((run.directory / "samples.jsonl").read_text().splitlines())
    return checkpoint_digest(run.directory), without_times(run.metrics, *PLACED), samples


def staleness_of(run: Run) -> list[tuple[float, float]]:
    return [(step["staleness/mean"], step["staleness/max"]) for step in run.metrics if step["step"] > 0]


@pytest.mark.parametrize(
    ("name", "staleness"),
    [
        pytest.param("GRPO", 1, marks=pytest.mark.slow),
        pytest.param("GRPO", 2, marks=pytest.mark.slow),
        pytest.param("PPO", 1, marks=pytest.mark.slow),
        ("PPO", 2),
        pytest.param("DAPO", 1, marks=pytest.mark.slow),
        pytest.param("DAPO", 2, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_ends_bit_for_bit_like_one_that_was_not(tiny, tmp_path, name, staleness):
    job = asynchronous_job(tiny, name, staleness)
    whole = run_in(tmp_path / "whole", job)
    killed = run_in(tmp_path / "killed", job, crashes=True)
    assert "restart 1 of 3, from the checkpoint of step 2" in killed.output
    assert learnt(killed) == learnt(whole)
    learning = [step for step in whole.metrics if step["step"] > 0]
    assert all(step["update/gradient_norm"] > 0 for step in learning)
    # validation of a step belongs to it, though it is made while a later one is generated
    assert [step["step"] for step in whole.metrics if "validation/accuracy" in step] == [0, 2, 4, 6]
    newest = [min(step - 1, staleness) for step in range(1, NUM_STEPS + 1)]
    if name != "DAPO":  # whose surplus of one step has a place in the next
        assert staleness_of(whole) == [(age, age) for age in newest]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_number_of_generators_draws_the_same(tiny, tmp_path, name):
    runs = [
        run_in(tmp_path / str(generators), asynchronous_job(tiny, name, 1, generators=generators))
        for generators in (1, 2, 4)
    ]
    one, two, four = map(learnt, runs)
    assert one == two == four
