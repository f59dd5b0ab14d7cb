"""A model of n bytes, and what each of several sources sends of it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rljob_api.memory.sizes import BUCKET_BYTES

LARGE, MIDDLE, SMALL = 24 << 20, 1 << 20, 64 << 10
"""Bytes of the tensors. Large ones are cut; they are half of a model that is not small."""

Named = tuple[str, torch.Tensor]


def sizes_of(num_bytes: int) -> list[int]:
    """Bytes of the tensors of a model."""
    num_large = num_bytes // 2 // LARGE if num_bytes >= 16 * LARGE else 0  # else they cannot be shared out evenly
    num_middle = (num_bytes - num_large * LARGE) * 7 // 8 // MIDDLE
    num_small = (num_bytes - num_large * LARGE - num_middle * MIDDLE) // SMALL
    return [LARGE] * num_large + [MIDDLE] * num_middle + [SMALL] * num_small


def tensors_of(num_bytes: int) -> dict[str, torch.Tensor]:
    """A model in bfloat16. Ranks of a copy keep rows of its tensors, and columns of each eighth."""
    sizes = sizes_of(num_bytes)
    names = [f"model.layers.{i}.mlp.{'down_proj' if i % 8 == 0 else 'up_proj'}.weight" for i in range(len(sizes))]
    return {
        name: torch.ones((size // 2048, 1024), dtype=torch.bfloat16) for name, size in zip(names, sizes, strict=True)
    }


def parts_of(model: dict[str, torch.Tensor], sources: int) -> list[list[Named]]:
    """What each source sends: about the same number of bytes."""
    parts: list[list[Named]] = [[] for _ in range(sources)]
    sizes = [0] * sources
    for name, tensor in model.items():
        least = sizes.index(min(sizes))
        parts[least].append((name, tensor))
        sizes[least] += tensor.nbytes
    return parts


def buckets_of(part: list[Named]) -> Iterator[list[Named]]:
    """As they are gathered: of at most BUCKET_BYTES."""
    bucket: list[Named] = []
    for name, tensor in part:
        if bucket and sum(item.nbytes for _, item in bucket) + tensor.nbytes > BUCKET_BYTES:
            yield bucket
            bucket = []
        bucket.append((name, tensor))
    if bucket:
        yield bucket
