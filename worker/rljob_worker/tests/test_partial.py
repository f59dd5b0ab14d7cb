"""Responses that go on in later steps, in whole jobs: what is trained on follows from lengths, however a job runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljob_worker.tests.jobs import CPU, Run, make_job
from rljob_worker.tests.metrics import without_times
from rljob_worker.tests.test_asynchronous import ALGORITHMS, PLACED, dag_of, learnt, run_in

PARTIAL = {"tokensPerRound": 3, "maxCarries": 2}
STOPS = list(range(10, 50))
"""Tokens that end a response, so that responses of the untrained model have many lengths."""
NUM_STEPS = 6
LENGTHS = ("partial/", "sampling/", "response_length/", "tokens/", "staleness/", "response/", "reward/")
"""Metrics that follow from which rows are trained on."""


def partial_job(
    tiny: Path, name: str, *, staleness: int = 0, generators: int = 1, trainers: int = 2, **spec: Any
) -> Any:
    """With a staleness in two groups, else in one of as many workers."""
    apart = [{"name": "rollout", "replicas": generators, "accelerator": CPU}, {"name": "train", "accelerator": CPU}]
    together = [{"name": "train", "accelerator": CPU | {"count": trainers}}]
    dag = dag_of(name)
    if not staleness:
        for stage in dag["stages"]:
            stage.pop("group")
    fields = {
        "workerGroups": apart if staleness else together,
        "algorithm": ALGORITHMS[name],
        "dag": dag,
        "rollout": {"maxResponseTokens": 12, "stopTokenIds": STOPS, "maxStaleness": staleness, "partial": PARTIAL},
        "validation": {"maxRows": 8, "everySteps": 3},
        "stop": {"steps": NUM_STEPS},
    }
    return make_job(tiny, **fields | spec)


def rows_of(run: Run) -> list[dict[str, float]]:
    """What follows from the rows of each step."""
    steps = without_times(run.metrics, *PLACED)
    return [{name: value for name, value in step.items() if name.startswith(LENGTHS)} for step in steps if step["step"]]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "staleness"), [("GRPO", 0), ("PPO", 1), ("DAPO", 2)])
def test_a_killed_run_ends_bit_for_bit_like_one_that_was_not(tiny, tmp_path, name, staleness):
    job = partial_job(tiny, name, staleness=staleness)
    whole = run_in(tmp_path / "whole", job)
    killed = run_in(tmp_path / "killed", job, crashes=True)
    assert "restart 1 of 3, from the checkpoint of step 2" in killed.output
    assert learnt(killed) == learnt(whole)
    steps = [step for step in whole.metrics if step["step"] > 0]
    assert sum(step["partial/rows_unfinished"] > 0 for step in steps) >= 3
    assert max(step["partial/age_max"] for step in steps) > 0
    assert max(step["staleness/max"] for step in steps) > staleness


@pytest.mark.slow
def test_ranks_and_placement_change_no_batch(tiny, tmp_path):
    """Weights of other numbers of ranks differ in last digits, and rows in none of their tokens."""
    jobs = {f"together-{trainers}": partial_job(tiny, "GRPO", trainers=trainers) for trainers in (1, 2, 4)}
    apart = {"workerGroups": [{"name": "rollout", "accelerator": CPU}, {"name": "train", "accelerator": CPU}]}
    jobs["apart"] = partial_job(tiny, "GRPO", dag=dag_of("GRPO"), **apart)
    one, *others = [rows_of(run_in(tmp_path / name, job)) for name, job in jobs.items()]
    for other in others:
        for step, result in zip(one, other, strict=True):
            assert result == pytest.approx(step)
