"""What decides how vLLM starts."""

from dataclasses import replace

import pytest
from transformers import LlamaConfig, Qwen3Config

from rljob_worker.engines.attention.heads import head_dim
from rljob_worker.engines.rollout.cache_bytes import cache_bytes_per_token
from rljob_worker.engines.rollout.vllm.settings import (
    VLLMSettings,
    cpu_cache_bytes,
    engine_arguments,
    require_block_size,
    share_of_device,
)
from rljob_worker.errors import InvalidJob

SETTINGS = VLLMSettings("float32", max_batch_rows=4, longest_row=100)
# 2 x 2 layers x 2 heads x 32 x 4 bytes = 1,024 bytes per token, 32 KiB per block of 32
CONFIG = Qwen3Config(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32, vocab_size=8
)


def test_keys_and_values_of_a_token() -> None:
    qwen3_8b = Qwen3Config(num_hidden_layers=36, num_key_value_heads=8, head_dim=128, num_attention_heads=32)
    assert cache_bytes_per_token(qwen3_8b, 2) == 147_456
    assert cache_bytes_per_token(CONFIG, 4) == 1024


def test_heads_without_a_width_of_their_own_share_the_hidden_ones() -> None:
    assert head_dim(LlamaConfig(hidden_size=64, num_attention_heads=4, head_dim=None)) == 16
    assert head_dim(CONFIG) == 32


def test_the_cpus_cache_holds_every_row_and_no_more() -> None:
    # rows of 100 tokens take 4 blocks of 32; 4 rows and the one that vLLM keeps are 17
    assert cpu_cache_bytes(SETTINGS, CONFIG, 4, free_bytes=1 << 30) == 17 * 32 * 1024


def test_where_memory_is_short_fewer_rows_run_at_once() -> None:
    # 0.6 of 400 KiB are 240, 7 blocks of 32
    assert cpu_cache_bytes(SETTINGS, CONFIG, 4, free_bytes=400 * 1024) == 7 * 32 * 1024


def test_memory_for_no_row_is_refused_with_the_numbers() -> None:
    with pytest.raises(InvalidJob, match=r"memoryFraction 0.5: of 0.1 GiB.*a row of 10000000 tokens needs 9.54"):
        cpu_cache_bytes(replace(SETTINGS, longest_row=10_000_000, memory_fraction=0.5), CONFIG, 4, 1 << 27)


def test_vllm_may_take_its_weights_and_of_what_they_leave_the_jobs_part() -> None:
    # 235B at tensor 8: 54.7 GiB of 71.8 that are free on 80, and 0.6 of the 17.1 that are left
    assert share_of_device(SETTINGS, 547, 718, 800) == pytest.approx((547 + 0.6 * 171) / 800)
    assert share_of_device(SETTINGS, 547, 500, 800) == pytest.approx(547 / 800)  # which vLLM refuses


@pytest.mark.parametrize("block_size", [None, 32, 128])
def test_blocks_that_the_cpu_has(block_size: int | None) -> None:
    require_block_size(replace(SETTINGS, block_size=block_size), is_cpu=True)


def test_other_blocks_are_for_devices() -> None:
    require_block_size(replace(SETTINGS, block_size=16), is_cpu=False)
    with pytest.raises(InvalidJob, match="blockSize 40: .* multiples of 32 tokens; write 64"):
        require_block_size(replace(SETTINGS, block_size=40), is_cpu=True)


def test_the_cpu_is_eager_and_cannot_sleep() -> None:
    on_cpu = engine_arguments(SETTINGS, "m", is_cpu=True)
    on_device = engine_arguments(SETTINGS, "m", is_cpu=False)
    assert (on_cpu["enforce_eager"], on_device["enforce_eager"]) == (True, False)
    assert (on_cpu["enable_sleep_mode"], on_device["enable_sleep_mode"]) == (False, True)
    assert (on_cpu["block_size"], "block_size" in on_device) == (32, False)
    assert on_cpu["enable_chunked_prefill"] is False and "enable_chunked_prefill" not in on_device
    assert on_device["distributed_executor_backend"] == "external_launcher"


def test_options_reach_the_engine() -> None:
    chosen = replace(
        SETTINGS, block_size=64, max_batched_tokens=4096, prefix_caching=False, enforce_eager=True, speculative_tokens=3
    )
    result = engine_arguments(chosen, "m", is_cpu=False)
    assert result["block_size"] == 64 and result["max_num_batched_tokens"] == 4096
    assert result["enable_prefix_caching"] is False and result["enforce_eager"] is True
    assert result["speculative_config"]["num_speculative_tokens"] == 3
    assert result["max_num_seqs"] == 4


def test_a_step_begins_when_the_one_before_is_over() -> None:
    """By then the positions of its draws are known."""
    assert engine_arguments(SETTINGS, "m", is_cpu=False)["async_scheduling"] is False
