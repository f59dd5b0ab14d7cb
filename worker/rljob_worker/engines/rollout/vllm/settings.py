"""What decides how vLLM is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from rljob_worker.engines.rollout.cache_bytes import cache_bytes_per_token
from rljob_worker.errors import InvalidJob

_MOST_PICTURES = 1024
"""No prompt has more; how many it may have is a matter of its tokens."""
_CPU_BLOCK = 32
"""Tokens that the CPU's attention reads at a time."""


@dataclass(frozen=True, slots=True)
class VLLMSettings:
    """Settings of one engine of one worker."""

    dtype: str
    """A name of torch's."""
    max_batch_rows: int
    """Requests that are decoded at once; others wait."""
    longest_row: int
    """Tokens of the longest prompt and response that the job may ask for together."""
    memory_fraction: float = 0.6
    """The fraction of free memory that the cache may take: of a device what weights leave; of a CPU no more than
    `max_batch_rows` of `longest_row` need."""
    workers_per_host: int = 1
    """Workers that share the memory of a host."""
    tensor: int = 1
    """Ranks that share every layer."""
    block_size: int | None = None
    max_batched_tokens: int | None = None
    prefix_caching: bool = True
    enforce_eager: bool = False
    batch_invariant: bool = False
    speculative_tokens: int = 0
    """Tokens guessed ahead from what the row repeats; 0: none."""


def engine_arguments(settings: VLLMSettings, path: str, *, is_cpu: bool) -> dict[str, Any]:
    """Arguments of vLLM's EngineArgs, except for memory. The weights it starts with are random: a policy is loaded
    next."""
    result: dict[str, Any] = {
        "model": path,
        "dtype": settings.dtype,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": settings.longest_row,
        "max_num_seqs": settings.max_batch_rows,
        "max_num_batched_tokens": settings.max_batched_tokens,
        "enable_prefix_caching": settings.prefix_caching,
        "enforce_eager": settings.enforce_eager or is_cpu,
        "enable_sleep_mode": not is_cpu,
        "async_scheduling": False,  # a step would begin before the positions of its draws are known
        "seed": 0,  # draws are not the library's
        "disable_log_stats": True,
        "generation_config": "vllm",  # the model's own defaults for sampling are not the job's
        "tensor_parallel_size": settings.tensor,
        "distributed_executor_backend": "external_launcher",  # this process is a rank of a world that it is in already
    }
    if is_cpu:
        # Prompts are computed whole, for which `maxBatchedTokens` has to have room: see the catalogue.
        result["enable_chunked_prefill"] = False
    if settings.block_size or is_cpu:
        result["block_size"] = settings.block_size or _CPU_BLOCK
    if settings.speculative_tokens:
        result["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": settings.speculative_tokens,
            "prompt_lookup_max": 4,
        }
    return result


def vision_arguments(*, shows: bool) -> dict[str, Any]:
    """More of them, of a model that sees. shows: whether requests have pictures, of which patches are made here."""
    return {
        "skip_tokenizer_init": False,  # processors of pictures, which are made and not asked, need one
        "limit_mm_per_prompt": dict.fromkeys(("image", "video"), _MOST_PICTURES if shows else 0),
        "mm_processor_cache_gb": 0,
        "mm_device_do_normalize": False,  # patches come normalized
        "skip_mm_profiling": True,
    }


def share_of_device(settings: VLLMSettings, weights: int, free: int, total: int) -> float:
    """The part of a device that vLLM may take: a copy of `weights` bytes, and of what that leaves of the `free` ones
    the job's part, in which it computes and has its cache."""
    return (weights + settings.memory_fraction * max(0, free - weights)) / total


def cpu_cache_bytes(settings: VLLMSettings, config: PretrainedConfig, itemsize: int, free_bytes: int) -> int:
    """Memory of the cache on the CPU. Raises InvalidJob when it cannot hold one row.

    Whole blocks for every row, and one that vLLM keeps for itself.
    """
    block = settings.block_size or _CPU_BLOCK
    per_block = cache_bytes_per_token(config, itemsize, settings.tensor) * block
    per_row = -(-settings.longest_row // block)
    most = int(free_bytes * settings.memory_fraction) // per_block
    if most < per_row + 1:
        raise InvalidJob(
            f"rollout.memoryFraction {settings.memory_fraction}: of {free_bytes / 2**30:.1f} GiB that are free for a "
            f"worker, the cache gets {most * per_block / 2**30:.2f}, but a row of {settings.longest_row} tokens needs "
            f"{(per_row + 1) * per_block / 2**30:.2f}; raise it, give the workers more memory, or shorten "
            "rollout.maxResponseTokens"
        )
    return min(most, per_row * settings.max_batch_rows + 1) * per_block


def require_block_size(settings: VLLMSettings, *, is_cpu: bool) -> None:
    """Raises InvalidJob for one that the kernels do not have."""
    if is_cpu and settings.block_size and settings.block_size % _CPU_BLOCK:
        raise InvalidJob(
            f"rollout.engineOptions.blockSize {settings.block_size}: on the CPU vLLM's blocks are multiples of "
            f"{_CPU_BLOCK} tokens; write {-(-settings.block_size // _CPU_BLOCK) * _CPU_BLOCK}"
        )
