"""Full tensors out of shards, many at a time: small tensors cost one collective together, not one each.

A bucket is as many consecutive tensors as fit its bytes. Everybody gets every bucket (`full_tensors`), or one rank of
the sources each (`buckets_at`, `tensors_at`), which then hand them on side by side:

    sources 0, 2      rank 0 gets buckets 0, 2, 4      rank 2 gets buckets 1, 3, 5      ranks 1 and 3 get none
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from rljob_api.memory.training import BUCKET_BYTES
from rljob_worker.engines.fsdp.sharding import world_size
from rljob_worker.engines.shards import local_part

Named = tuple[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors of one kind that travel together, as `dtype`."""

    tensors: tuple[Named, ...]
    dtype: torch.dtype

    @property
    def mesh(self) -> DeviceMesh | None:
        """The ranks over which they are sharded; None where each rank has them whole."""
        return _mesh(self.tensors[0][1])

    @property
    def is_sharded(self) -> bool:
        return self.num_ranks > 1

    @property
    def sizes(self) -> list[int]:
        """Elements that each tensor takes on every rank: FSDP shards dim 0 in chunks of ceil(rows / ranks)."""
        ranks = self.num_ranks
        return [-(-tensor.shape[0] // ranks) * (tensor.numel() // tensor.shape[0]) for _, tensor in self.tensors]

    @property
    def num_ranks(self) -> int:
        return 1 if self.mesh is None else int(self.mesh.size())

    @property
    def device(self) -> torch.device:
        """Where ranks meet; shards may wait in the memory of the host."""
        tensor = self.tensors[0][1]
        return torch.device(tensor.device_mesh.device_type) if isinstance(tensor, DTensor) else tensor.device

    @property
    def own_bytes(self) -> int:
        """Of what each rank has."""
        return sum(self.sizes) * self.dtype.itemsize

    def own(self, memory: torch.Tensor) -> torch.Tensor:
        """This rank's shards, one after another in memory of `own_bytes`: [sum(sizes)]. Behind those of a rank that has
        fewer rows than others is whatever was there."""
        shards = [local_part(tensor.detach()) for _, tensor in self.tensors]
        flat = memory.view(self.dtype)
        for part, shard in zip(flat.split(self.sizes), shards, strict=True):
            part[: shard.numel()].copy_(shard.reshape(-1))
        return flat

    def whole(self, everyone: torch.Tensor) -> Iterator[Named]:
        """The tensors, from what all ranks call their own: [ranks, sum(sizes)]."""
        for (name, tensor), part in zip(self.tensors, everyone.split(self.sizes, dim=1), strict=True):
            yield name, part.reshape(-1)[: tensor.numel()].view(tensor.shape)

    def as_they_are(self) -> Iterator[Named]:
        """The tensors, where this rank has them whole: in the memory where they are, unless their type is another."""
        return ((name, local_part(tensor.detach()).to(self.dtype)) for name, tensor in self.tensors)


def full_tensors(
    named: Iterable[Named], dtype: torch.dtype | None = None, bucket_bytes: int = BUCKET_BYTES
) -> Iterator[Named]:
    """Stream all tensors, in order, to every rank over which they are sharded; as `dtype` if there is one. Collective:
    every rank exhausts it. At most a bucket is held whole."""
    for bucket in buckets(named, bucket_bytes, dtype):
        if bucket.mesh is None or not bucket.is_sharded:
            yield from bucket.as_they_are()
            continue
        own = bucket.own(_Room().of(bucket.own_bytes, bucket.device))
        everyone = own.new_empty(bucket.num_ranks * own.numel())
        dist.all_gather_single(everyone, own, group=bucket.mesh.get_group())
        yield from bucket.whole(everyone.view(bucket.num_ranks, -1))


def tensors_at(
    named: Iterable[Named],
    group: dist.ProcessGroup | None,
    sources: Sequence[int],
    dtype: torch.dtype | None = None,
    bucket_bytes: int = BUCKET_BYTES,
) -> Iterator[Named]:
    """What `buckets_at` yields, tensor after tensor."""
    return chain.from_iterable(buckets_at(named, group, sources, dtype, bucket_bytes))


def buckets_at(
    named: Iterable[Named],
    group: dist.ProcessGroup | None,
    sources: Sequence[int],
    dtype: torch.dtype | None = None,
    bucket_bytes: int = BUCKET_BYTES,
) -> Iterator[Iterable[Named]]:
    """Stream to each rank of `sources` its share: bucket b to `sources[b % len(sources)]`, to nobody else.

    Collective: every rank exhausts it. As many buckets as there are sources are on their way at once, a round of which
    every rank gets one item: its bucket, or no tensors. A source holds one bucket whole, in memory that the next one
    takes over; a tensor is good until the next one is asked for.
    """
    assert len(set(sources)) == len(sources) > 0, f"sources are different ranks, at least one: {sources}"
    assert all(0 <= source < world_size(group) for source in sources), f"{sources} of {world_size(group)} ranks"
    if group is None or world_size(group) == 1:
        for bucket in buckets(named, bucket_bytes, dtype):
            yield full_tensors(bucket.tensors, bucket.dtype, bucket_bytes)
        return
    rest, rooms = buckets(named, bucket_bytes, dtype), _Rooms(_Room(), [_Room() for _ in sources])
    while together := list(islice(rest, len(sources))):
        # the last round may have fewer buckets than there are sources
        yield _to_its_source(list(zip(together, sources, strict=False)), group, rooms)


def buckets(named: Iterable[Named], limit: int, dtype: torch.dtype | None = None) -> Iterator[Bucket]:
    """Consecutive tensors of one dtype over the same ranks, up to `limit` bytes together as `dtype`; a larger one is
    alone."""
    bucket: list[Named] = []
    size = 0
    for name, tensor in named:
        nbytes = tensor.numel() * (dtype or tensor.dtype).itemsize
        if bucket and (size + nbytes > limit or not _alike(bucket[0][1], tensor)):
            yield Bucket(tuple(bucket), dtype or bucket[0][1].dtype)
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += nbytes
    if bucket:
        yield Bucket(tuple(bucket), dtype or bucket[0][1].dtype)


def _alike(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and _mesh(left) == _mesh(right)


def _mesh(tensor: torch.Tensor) -> DeviceMesh | None:
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


def _to_its_source(together: Sequence[tuple[Bucket, int]], group: dist.ProcessGroup, rooms: _Rooms) -> Iterable[Named]:
    """Gather buckets, each on a rank of its own, all at once; the tensors of the one that is this rank's."""
    rank = group.rank()
    works = [
        dist.gather(
            _as_bytes(bucket.own(room.of(bucket.own_bytes, bucket.device))),
            list(_as_bytes(rooms.everyone(bucket)).unbind()) if source == rank else None,
            group=group,
            group_dst=source,
            async_op=True,
        )
        for (bucket, source), room in zip(together, rooms.own, strict=False)
        if bucket.is_sharded
    ]
    for work in works:
        work.wait()
    for bucket, source in together:
        if source == rank:
            return bucket.whole(rooms.everyone(bucket)) if bucket.is_sharded else bucket.as_they_are()
    return ()


class _Room:
    """Memory that is used again; it grows to the most that was asked for."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def of(self, num_bytes: int, device: torch.device) -> torch.Tensor:
        """uint8 [num_bytes]."""
        if self._memory.numel() < num_bytes:
            self._memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        return self._memory[:num_bytes]


@dataclass(frozen=True, slots=True)
class _Rooms:
    """For the buckets of a round."""

    whole: _Room
    """For the one that this rank gets."""
    own: Sequence[_Room]
    """For what this rank has of each."""

    def everyone(self, bucket: Bucket) -> torch.Tensor:
        """[ranks, sum(sizes)], the same memory every time."""
        memory = self.whole.of(bucket.num_ranks * bucket.own_bytes, bucket.device)
        return memory.view(bucket.dtype).view(bucket.num_ranks, -1)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Not every backend of collectives knows every dtype."""
    return tensor.view(torch.uint8)
