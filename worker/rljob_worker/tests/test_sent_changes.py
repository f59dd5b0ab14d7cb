"""A job whose weights go as changes, beside the same job whose weights go whole; with the engine of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.tests.jobs import DISAGGREGATED, Run, make_job, run_job
from rljob_worker.tests.matrix import ENGINE
from rljob_worker.tests.metrics import samples, without_times


def sending(tiny: Path, folder: Path, delta: dict[str, int] | None) -> Run:
    """Four versions: one to start with, and one after each of three steps, as the last is validated, too."""
    job = make_job(
        tiny,
        workerGroups=DISAGGREGATED,
        rollout={"engine": ENGINE, "maxResponseTokens": 12},
        # so little of BFloat16 changes in a step that places and values are less than the tensors
        training={"precision": "BFloat16", "learningRate": 1.0e-6, "tokensPerMicroBatch": 256},
        weightSync={"delta": delta},
        validation={"maxRows": 8, "everySteps": 1},
        checkpoint={"everySteps": 0},
        stop={"steps": 3},
    )
    run = run_job(job, folder, timeout_seconds=8 * TEST_TIMEOUT_SECONDS)
    assert run.code == 0, run.output + run.logs
    return run


@pytest.mark.slow
def test_a_policy_that_goes_as_changes_is_the_one_that_goes_whole(tiny: Path, tmp_path: Path) -> None:
    whole, changes = sending(tiny, tmp_path / "whole", None), sending(tiny, tmp_path / "changes", {"fullEvery": 3})
    assert without_times(changes.metrics) == without_times(whole.metrics)
    assert samples(changes) == samples(whole)
    assert all(step["update/gradient_norm"] > 0 for step in whole.metrics[1:])
    sent, model = ([step["weights/sent_bytes"] for step in run.metrics] for run in (changes, whole))
    assert len(set(model)) == 1 and sent[0] == sent[3] == model[0]
    assert all(0 < item < model[0] / 2 for item in sent[1:3]), (sent, model)
