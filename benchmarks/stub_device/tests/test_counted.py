"""The worker of a model of few layers, as it is planned and as it is counted: in a process of its own, which has the
device to its end."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from published_models.jobs import PublishedJob

from rljob_api.planning.planner import plan
from stub_device.worker import PhaseBytes, counted, counted_by_layers

SHALLOW: Mapping[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": False,
    "max_position_embeddings": 40_960,
}
EXPERTS = {
    **SHALLOW,
    "model_type": "qwen3_moe",
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 768,
}
JOB = PublishedJob("shallow", SHALLOW, 1, 512, 512, ("training.tokensPerMicroBatch=8192",))
WITH_EXPERTS = PublishedJob("experts", EXPERTS, 1, 512, 512, JOB.fields)
OFF = 0.1
pytestmark = pytest.mark.slow  # tens of seconds where cores do other work


@pytest.fixture
def pool():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


def asked(pool: ProcessPoolExecutor, job: PublishedJob, folder: Path, count: Any = counted) -> dict[str, PhaseBytes]:
    made = plan(job.parsed(), shapes={job.model: job.shape})
    return pool.submit(count, made, job.config, 80 << 30, 128, folder).result()


@pytest.mark.parametrize("job", [JOB, WITH_EXPERTS], ids=lambda job: job.model)
def test_the_plan_of_a_shallow_model_is_what_its_engines_take(
    pool: ProcessPoolExecutor, job: PublishedJob, tmp_path: Path
) -> None:
    there = asked(pool, job, tmp_path)
    planned = {phase.phase: phase for phase in job.memory().phases}
    ratios = {name: planned[name].peak / there[name].device for name in ("load", "generate", "train", "sync")}
    ratios["checkpoint"] = planned["checkpoint"].host / there["checkpoint"].host
    assert ratios == pytest.approx(dict.fromkeys(ratios, 1), abs=OFF)


def test_layers_that_are_not_counted_take_as_much_as_those_that_are(pool: ProcessPoolExecutor, tmp_path: Path) -> None:
    whole, few = (asked(pool, JOB, tmp_path / count.__name__, count) for count in (counted, counted_by_layers))
    assert all(few[name] == whole[name] for name in ("load", "train", "sync", "checkpoint"))
    # most is there when prompts go into the cache, or when tokens are drawn, which few layers leave more of
    assert few["generate"].device == pytest.approx(whole["generate"].device, rel=1e-3)
