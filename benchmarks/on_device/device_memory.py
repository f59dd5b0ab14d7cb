"""Memory of a device: what one block of work takes at most. On a CPU nothing is known."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

GIB = 1 << 30


@dataclass
class Taken:
    """Bytes of torch's allocator."""

    most: int | None = None


@contextmanager
def taken(device: torch.device) -> Iterator[Taken]:
    """The most there was in a block, what was there before it included."""
    result = Taken()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    yield result
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        result.most = torch.cuda.max_memory_allocated(device)


def free(device: torch.device) -> int | None:
    """Bytes of the device that nobody has, torch's own reserve not counted as free."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None


def finish(device: torch.device) -> None:
    """Wait for what was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forget(device: torch.device) -> None:
    """Give back what the part before has left."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def shown(num_bytes: float | None) -> str:
    return "–" if num_bytes is None else f"{num_bytes / GIB:.2f}"
