"""The memory of vLLM's keys and values."""

from __future__ import annotations

from typing import Any

from rljob_worker.engines.rollout.cache_bytes import cache_bytes_per_token


def zero_cache(worker: Any) -> None:
    """On a worker of vLLM, where no request has a block. Blocks are read to their end and what a row has not is
    multiplied by zero, so that one number that is not finite would spoil the request that gets its block."""
    for of_layer in worker.model_runner.kv_caches:
        for tensor in of_layer if isinstance(of_layer, list | tuple) else [of_layer]:
            tensor.zero_()


def in_use(engine: Any) -> tuple[int, int]:
    """Requests of vLLM's engine that are decoded, and tokens for which there is room besides them."""
    scheduler = engine.engine_core.engine_core.scheduler
    return len(scheduler.running), scheduler.kv_cache_manager.block_pool.get_num_free_blocks() * scheduler.block_size


def most_tokens(engine: Any) -> int:
    """Tokens that the cache has room for."""
    config = engine.vllm_config.cache_config
    return int((config.num_gpu_blocks or 0) * config.block_size)


def cache_bytes(engine: Any) -> int:
    """Bytes of this rank's part of the cache."""
    config = engine.vllm_config
    tensor, itemsize = config.parallel_config.tensor_parallel_size, config.model_config.dtype.itemsize
    return most_tokens(engine) * cache_bytes_per_token(config.model_config.hf_config, itemsize, tensor)
