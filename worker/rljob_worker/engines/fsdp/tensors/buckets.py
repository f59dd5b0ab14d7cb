"""Tensors that travel together: how many of them, and where each lies in what their ranks have.

Every tensor is sharded by rows over the ranks that have the same of it: the whole, or one part where ranks split it
(see `split`). Of two parts on four ranks, numbered as meshes number them:

    rank                     0                  1                  2                  3
    a whole tensor           first rows         first rows         last rows          last rows
    a tensor in two parts    first of part 0    first of part 1    last of part 0     last of part 1
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch.distributed.tensor import DTensor

from rljob_worker.engines.parallel.shards import local_part, num_shards
from rljob_worker.engines.parallel.split import ParameterSlice

Named = tuple[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Scattered:
    """A tensor, seen from one of the ranks that have something of it."""

    name: str
    here: torch.Tensor
    """The whole of it, or this rank's part; a DTensor where that is sharded."""
    share: ParameterSlice | None = None
    """Which part; None for a tensor that is not split."""

    @property
    def num_parts(self) -> int:
        return 1 if self.share is None else self.share.size

    @property
    def num_ranks(self) -> int:
        """Those of a replica, which have it together; 1 where each rank has it whole."""
        return num_shards(self.here) * self.num_parts

    @property
    def device(self) -> torch.device:
        """Where ranks meet; shards may wait in the memory of the host."""
        return torch.device(self.here.device_mesh.device_type) if isinstance(self.here, DTensor) else self.here.device

    @property
    def num_elements(self) -> int:
        """Elements of the whole tensor."""
        return int(self.here.numel()) * self.num_parts

    @property
    def size(self) -> int:
        """Elements that it takes on every rank: FSDP shards dim 0 in chunks of ceil(rows / ranks)."""
        shards = self.num_ranks // self.num_parts
        return -(-int(self.here.shape[0]) // shards) * prod(map(int, self.here.shape[1:]))

    def put(self, room: torch.Tensor) -> None:
        """This rank's shard into `size` elements. Behind that of a rank that has fewer rows is padding."""
        shard = local_part(self.here.detach())
        room[: shard.numel()].copy_(shard.reshape(-1))

    def whole(self, everyone: torch.Tensor) -> torch.Tensor:
        """From what all its ranks have: [ranks, size]."""
        shards = everyone.view(len(everyone) // self.num_parts, self.num_parts, self.size).transpose(0, 1)
        parts = [part.reshape(-1)[: self.here.numel()].view(self.here.shape) for part in shards]
        return parts[0] if self.share is None else torch.cat(parts, self.share.dim)

    def as_it_is(self, dtype: torch.dtype) -> torch.Tensor:
        """Where this rank has it whole: in the memory where it is, unless its type is another."""
        return local_part(self.here.detach()).to(dtype)


@dataclass(frozen=True, slots=True)
class Lot:
    """Tensors of a bucket that the same ranks have together: they are gathered in one collective."""

    tensors: tuple[Scattered, ...]
    dtype: torch.dtype

    @property
    def is_split(self) -> bool:
        """Whether all ranks have something of them, and not only those with the same part."""
        return self.tensors[0].share is not None

    @property
    def num_ranks(self) -> int:
        return self.tensors[0].num_ranks

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    @property
    def sizes(self) -> list[int]:
        return [tensor.size for tensor in self.tensors]

    @property
    def own_bytes(self) -> int:
        """Bytes of the part that each rank has."""
        return sum(self.sizes) * int(self.dtype.itemsize)

    def own(self, memory: torch.Tensor) -> torch.Tensor:
        """This rank's shards, one after another in memory of `own_bytes`: [sum(sizes)]."""
        flat = memory.view(self.dtype)
        for item, room in zip(self.tensors, flat.split(self.sizes), strict=True):
            item.put(room)
        return flat

    def by_tensor(self, everyone: torch.Tensor) -> Iterator[Named]:
        """What all ranks have of each tensor, by its name, from what each calls its own: [ranks, sum(sizes)]."""
        return zip((tensor.name for tensor in self.tensors), everyone.split(self.sizes, dim=1), strict=True)


@dataclass(frozen=True, slots=True)
class TensorBucket:
    """Consecutive tensors of one type that travel together, as `dtype`."""

    tensors: tuple[Scattered, ...]
    dtype: torch.dtype

    @property
    def lots(self) -> list[Lot]:
        """What has to be gathered of it: none of what each rank has whole."""
        sharded = [tensor for tensor in self.tensors if tensor.num_ranks > 1]
        kinds = ([item for item in sharded if (item.share is not None) == is_split] for is_split in (False, True))
        return [Lot(tuple(kind), self.dtype) for kind in kinds if kind]

    def whole(self, gathered: Mapping[str, torch.Tensor]) -> Iterator[Named]:
        """The tensors, in order. gathered: [ranks, size] of each that is in a lot."""
        for tensor in self.tensors:
            everyone = gathered.get(tensor.name)
            yield tensor.name, tensor.as_it_is(self.dtype) if everyone is None else tensor.whole(everyone)


def buckets(tensors: Iterable[Scattered], limit: int, dtype: torch.dtype | None = None) -> Iterator[TensorBucket]:
    """Consecutive tensors of one dtype, up to `limit` bytes together as `dtype` where they are whole; a larger one is
    alone."""
    bucket: list[Scattered] = []
    size = 0
    for tensor in tensors:
        nbytes = tensor.num_elements * (dtype or tensor.here.dtype).itemsize
        if bucket and (size + nbytes > limit or bucket[0].here.dtype != tensor.here.dtype):
            yield TensorBucket(tuple(bucket), dtype or bucket[0].here.dtype)
            bucket, size = [], 0
        bucket.append(tensor)
        size += nbytes
    if bucket:
        yield TensorBucket(tuple(bucket), dtype or bucket[0].here.dtype)
