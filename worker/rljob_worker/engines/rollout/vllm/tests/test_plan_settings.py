"""How a plan wants vLLM started."""

from typing import Any

import pytest

from rljob_api.planning.plan import Plan
from rljob_worker.engines.rollout.vllm.plan_settings import settings_of
from rljob_worker.engines.rollout.vllm.settings import VLLMSettings
from rljob_worker.tests.documents import plan_of


def settings(profile: str = "cpu", **rollout: Any) -> VLLMSettings:
    made = planned(profile, **rollout)
    return settings_of(made, made.engine("rollout/actor"))


def planned(profile: str, **rollout: Any) -> Plan:
    return plan_of(
        data={"batchSize": 8, "maxPromptTokens": 100, "train": [{"path": "train.parquet"}]},
        algorithm={"name": "GRPO", "groupSize": 4},
        workerGroups=[{"name": "train", "replicas": 1, "accelerator": {"profile": profile, "count": 2}}],
        training={"precision": "Float32"},
        rollout={"engine": "VLLM", "maxResponseTokens": 28, **rollout},
    )


def test_rows_of_a_worker_run_together() -> None:
    # 8 prompts of 4 rows on 2 workers; 100 and 28 tokens
    result = settings()
    assert (result.max_batch_rows, result.longest_row) == (16, 128)
    assert result.dtype == "float32" and result.workers_per_host == 2


def test_the_jobs_part_of_the_memory_is_the_librarys() -> None:
    assert settings(memoryFraction=0.25).memory_fraction == 0.25


def test_options_that_are_not_given_are_what_their_docs_say() -> None:
    result = settings()
    assert result.block_size is None and result.max_batched_tokens is None and result.speculative_tokens == 0
    assert (result.prefix_caching, result.enforce_eager, result.batch_invariant) == (True, False, False)


def test_what_only_devices_have_reaches_the_settings() -> None:
    result = settings("nvidia-h100", engineOptions={"batchInvariant": True, "speculativeTokens": 4})
    assert result.batch_invariant and result.speculative_tokens == 4


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"blockSize": 64}, {"block_size": 64}),
        ({"maxBatchedTokens": 512}, {"max_batched_tokens": 512}),
        ({"prefixCaching": False}, {"prefix_caching": False}),
        ({"enforceEager": True}, {"enforce_eager": True}),
    ],
)
def test_options_reach_the_settings(option: dict[str, Any], expected: dict[str, Any]) -> None:
    result = settings(engineOptions=option)
    assert {name: getattr(result, name) for name in expected} == expected
