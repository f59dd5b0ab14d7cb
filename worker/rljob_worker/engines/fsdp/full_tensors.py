"""Full tensors out of shards, many at a time: small tensors cost one collective together, not one each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

_BUCKET_BYTES = 64 << 20

Named = tuple[str, torch.Tensor]


def full_tensors(named: Iterable[Named], group: dist.ProcessGroup | None) -> Iterator[Named]:
    """Stream full tensors in order. Collective: every rank exhausts it. At most a bucket, or one tensor, is held
    whole."""
    for bucket in buckets(named, _BUCKET_BYTES):
        if any(isinstance(tensor, DTensor) for _, tensor in bucket):
            yield from _gather(bucket, group)
        else:
            yield from ((name, tensor.detach()) for name, tensor in bucket)


def buckets(named: Iterable[Named], limit: int) -> Iterator[list[Named]]:
    """Consecutive tensors of one dtype and kind, up to `limit` bytes together."""
    bucket: list[Named] = []
    size = 0
    for name, tensor in named:
        nbytes = tensor.numel() * tensor.element_size()
        if bucket and (size + nbytes > limit or not _alike(bucket[0][1], tensor)):
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += nbytes
    if bucket:
        yield bucket


def _alike(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and isinstance(left, DTensor) == isinstance(right, DTensor)


def _gather(bucket: list[Named], group: dist.ProcessGroup | None) -> Iterator[Named]:
    """Each rank's shards, one after another, gathered as one flat tensor. FSDP shards dim 0 in chunks of ceil(rows /
    ranks)."""
    shards = [tensor._local_tensor for _, tensor in bucket]
    ranks = bucket[0][1].device_mesh.size()
    sizes = [-(-tensor.shape[0] // ranks) * (tensor.numel() // tensor.shape[0]) for _, tensor in bucket]
    flat = shards[0].new_zeros(sum(sizes))
    for part, shard in zip(flat.split(sizes), shards, strict=True):
        part[: shard.numel()].copy_(shard.detach().reshape(-1))
    everyone = flat.new_empty(ranks * flat.numel())
    dist.all_gather_single(everyone, flat, group=group)
    parts = everyone.view(ranks, -1).split(sizes, dim=1)
    for (name, tensor), part in zip(bucket, parts, strict=True):
        yield name, part.reshape(-1)[: tensor.numel()].view(tensor.shape)
