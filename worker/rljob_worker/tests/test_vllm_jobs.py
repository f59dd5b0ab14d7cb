"""Whole jobs that generate with vLLM; collected where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.tests.fault_injection import ask_for
from rljob_worker.tests.jobs import CPU, DISAGGREGATED, Run, make_job, run_job, troubled_job
from rljob_worker.tests.metrics import samples
from rljob_worker.tests.test_conversation_jobs import conversation_job
from rljob_worker.tests.test_conversation_jobs import run_in as run_conversations
from rljob_worker.tests.test_partial import STOPS

PAIR = [{"name": "train", "accelerator": {"profile": "cpu", "count": 2}}]


def test_a_run_goes_on_with_a_fresh_engine_and_says_its_last_words(tiny: Path, tmp_path: Path) -> None:
    job = troubled_job(tiny, rollout={"engine": "VLLM", "maxResponseTokens": 12}, stop={"steps": 3})
    ask_for(tmp_path, steps={2: "break_vllm"})
    run = run_job(job, tmp_path, timeout_seconds=8 * TEST_TIMEOUT_SECONDS)
    assert run.code == 0, run.output + run.logs
    assert "vLLM broke while generating: RuntimeError: illegal instruction" in run.output
    assert "restart 1 of 3, from the checkpoint of step 2" in run.output
    assert [step["step"] for step in run.metrics] == [1, 2, 3]


def test_two_workers_generate_together_with_what_an_adapter_has_learnt(tiny: Path, tmp_path: Path) -> None:
    """As likely as the trainer says, whose adapter is beside the model and not in it: within rounding."""
    job = make_job(
        tiny,
        models=[{"name": "actor", "path": str(tiny / "model"), "adapter": {"rank": 4}}],
        workerGroups=PAIR,
        training={"learningRate": 0.05, "precision": "Float32", "tokensPerMicroBatch": 256},
        rollout={"engine": "VLLM", "maxResponseTokens": 12, "parallelism": {"tensor": 2}},
        stop={"steps": 3},
    )
    run = run_job(job, tmp_path, timeout_seconds=8 * TEST_TIMEOUT_SECONDS)
    assert run.code == 0, run.output + run.logs
    steps = run.metrics[1:]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(abs(step["mismatch/ratio_max"] - 1) < 1e-3 for step in steps), steps
    assert all(step["update/gradient_norm"] > 0 for step in steps)


@pytest.mark.parametrize("sync", [{"transport": "DataBuffer"}, {"transport": "Collective", "delta": {"fullEvery": 2}}])
def test_two_workers_of_a_copy_take_a_slice_each_from_another_group(
    tiny: Path, tmp_path: Path, sync: dict[str, Any]
) -> None:
    """Each step is drawn with the weights that it begins to train. Both take together all of the model, of 838,976
    numbers, and 1,088 of norms once more."""
    groups = [{"name": name, "accelerator": CPU | {"count": 2}} for name in ("rollout", "train")]
    rollout = {"engine": "VLLM", "maxResponseTokens": 12, "parallelism": {"tensor": 2}}
    spec = {"workerGroups": groups, "rollout": rollout, "weightSync": sync, "stop": {"steps": 3}}
    training = {"precision": "Float32", "learningRate": 0.01, "tokensPerMicroBatch": 256}
    run = run_job(make_job(tiny, **spec, training=training), tmp_path, timeout_seconds=8 * TEST_TIMEOUT_SECONDS)
    assert run.code == 0, run.output + run.logs
    steps = run.metrics[1:]
    assert all(abs(step["mismatch/ratio_max"] - 1) < 1e-3 for step in steps), steps
    assert [step["weights/received_bytes"] for step in steps] == [4 * (838_976 + 1_088)] * 3


def test_vllm_generates_ahead_of_training(tiny: Path, tmp_path: Path) -> None:
    """Each step with the version that is its own, which the engine takes between two steps."""
    rollout = {"engine": "VLLM", "maxResponseTokens": 12, "maxStaleness": 1}
    spec = {"workerGroups": DISAGGREGATED, "rollout": rollout, "stop": {"steps": 4}}
    run = run_job(make_job(tiny, **spec), tmp_path, timeout_seconds=8 * TEST_TIMEOUT_SECONDS)
    assert run.code == 0, run.output + run.logs
    steps = run.metrics[1:]
    assert [(step["staleness/mean"], step["staleness/max"]) for step in steps] == [(0, 0), (1, 1), (1, 1), (1, 1)]
    assert all(step["update/gradient_norm"] > 0 for step in steps)
    # step 1 is drawn with the weights that it begins to train
    assert abs(steps[0]["mismatch/ratio_max"] - 1) < 1e-3


def test_vllm_goes_on_with_responses_in_later_steps(tiny: Path, tmp_path: Path) -> None:
    """Both ranks of a copy do, with what the step before left of each row."""
    job = make_job(
        tiny,
        workerGroups=PAIR,
        rollout={
            "engine": "VLLM",
            "maxResponseTokens": 12,
            "stopTokenIds": STOPS,
            "parallelism": {"tensor": 2},
            "partial": {"tokensPerRound": 3, "maxCarries": 3},
        },
        stop={"steps": 3},
    )
    run = run_job(job, tmp_path, timeout_seconds=8 * TEST_TIMEOUT_SECONDS)
    assert run.code == 0, run.output + run.logs
    steps = run.metrics[1:]
    assert steps[0]["partial/rows_unfinished"] > 0 and steps[-1]["partial/age_max"] > 0
    assert abs(steps[0]["mismatch/ratio_max"] - 1) < 1e-3, "responses of several rounds of one step"
    assert all(step["update/gradient_norm"] > 0 for step in steps)


def test_two_ranks_of_a_copy_play_the_conversations_that_one_plays(tiny: Path, tmp_path: Path) -> None:
    """With calls between turns, and where trajectories go on in later steps."""

    def played(workers: int) -> Run:
        group = {"name": "train", "accelerator": CPU | {"count": workers}}
        job = conversation_job(tiny, workerGroups=[group], stop={"steps": 3})
        partial = {"tokensPerRound": 5, "maxCarries": 3}
        job["spec"]["rollout"] |= {"engine": "VLLM", "parallelism": {"tensor": workers}, "partial": partial}
        return run_conversations(tmp_path / str(workers), job, crashes=False)

    one, two = played(1), played(2)
    assert samples(two) == samples(one) and {key[0] for key in samples(one)} == {1, 2, 3}
    steps = [[step for step in run.metrics if step["step"]] for run in (one, two)]
    for name in ("tokens/response_total", "conversation/world_tokens", "reward/mean", "conversation/tool_calls"):
        figures = [[step[name] for step in of_run] for of_run in steps]
        assert figures[1] == pytest.approx(figures[0]) and min(figures[0]) > 0, name
    assert steps[1][0]["mismatch/probs_diff_max"] < 1e-4
    assert all(step["partial/rows_unfinished"] > 0 for step in steps[1])
