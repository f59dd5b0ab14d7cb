"""The memory of vLLM's keys and values."""

from __future__ import annotations

from typing import Any


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
