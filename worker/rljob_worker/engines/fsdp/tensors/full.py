"""Full tensors out of shards and parts, many at a time: small tensors cost one collective together, not one each.

A bucket is as many consecutive tensors as fit its bytes. Everybody gets every bucket (`full_tensors`), or one rank of
the sources each (`buckets_at`), which then hand them on side by side:

    sources 0, 2      rank 0 gets buckets 0, 2, 4      rank 2 gets buckets 1, 3, 5      ranks 1 and 3 get none

Only ranks that have something to give take part, those of the source's replica. Where ranks split matrices, what is not
split is given by those with the same part as the source, and what is split by all: each byte of a bucket travels once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import torch
import torch.distributed as dist

from rljob_api.memory.sizes import BUCKET_BYTES
from rljob_worker.engines.fsdp.tensors.buckets import Lot, Named, TensorBucket, buckets
from rljob_worker.engines.fsdp.tensors.parts import Parts


def full_tensors(
    named: Iterable[Named], parts: Parts, dtype: torch.dtype | None = None, bucket_bytes: int = BUCKET_BYTES
) -> Iterator[Named]:
    """Stream all tensors, in order, to every rank that has something of the model; as `dtype` if there is one, and of
    pipeline stages always. Collective: every rank exhausts it. At most a bucket is held whole."""
    spoken_for = ((name, tensor) for name, tensor in named if parts.speaks_for(name))
    own = of_layers(spoken_for, parts, dtype, bucket_bytes)
    return own if parts.pipeline_stages is None else _of_pipeline_stages(own, parts, parts.pipeline_stages.held, dtype)


def of_layers(
    named: Iterable[Named], parts: Parts, dtype: torch.dtype | None = None, bucket_bytes: int = BUCKET_BYTES
) -> Iterator[Named]:
    """Gather tensors to the ranks that have something of the same layers: all of them, except in pipeline stages."""
    for bucket in buckets(parts.scattered(named), bucket_bytes, dtype):
        gathered: dict[str, torch.Tensor] = {}
        for lot in bucket.lots:
            own = lot.own(torch.empty(lot.own_bytes, dtype=torch.uint8, device=lot.device))
            everyone = own.new_empty(lot.num_ranks * own.numel())
            dist.all_gather_single(everyone, own, group=parts.holders(is_split=lot.is_split))
            gathered.update(lot.by_tensor(everyone.view(lot.num_ranks, -1)))
        yield from bucket.whole(gathered)


def _of_pipeline_stages(
    own: Iterator[Named], parts: Parts, names: Iterable[str], dtype: torch.dtype | None
) -> Iterator[Named]:
    assert parts.pipeline_stages is not None and dtype is not None, "stages agree on a dtype"
    return parts.pipeline_stages.together(own, names, dtype, parts.device)


def buckets_at(
    named: Iterable[Named],
    parts: Parts,
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
    assert all(0 <= source < parts.num_ranks for source in sources), f"{sources} of {parts.num_ranks} ranks"
    if parts.pipeline_stages is not None:
        yield from _from_pipeline_stages(dict(named), parts, sources, dtype, bucket_bytes)
        return
    rest, rooms = buckets(parts.scattered(named), bucket_bytes, dtype), _Rooms()
    while together := list(islice(rest, len(sources))):
        # the last round may have fewer buckets than there are sources
        yield _to_its_source(list(zip(together, sources, strict=False)), parts, rooms)


def _from_pipeline_stages(
    named: dict[str, torch.Tensor], parts: Parts, sources: Sequence[int], dtype: torch.dtype | None, bucket_bytes: int
) -> Iterator[Iterable[Named]]:
    """Every rank of a source's replica helps with its bucket, and lets go what is not its own, tensor by tensor."""
    rest = buckets(parts.everything(named.items()), bucket_bytes, dtype)
    while together := list(islice(rest, len(sources))):
        mine: list[Named] = []
        for bucket, source in zip(together, sources, strict=False):
            if not parts.is_of_this_replica(source):
                continue
            names = [tensor.name for tensor in bucket.tensors]
            here = ((name, named[name]) for name in names if name in named and parts.speaks_for(name))
            whole = _of_pipeline_stages(of_layers(here, parts, bucket.dtype, bucket_bytes), parts, names, bucket.dtype)
            if source == parts.rank:
                mine = list(whole)
            else:
                deque(whole, maxlen=0)
        yield mine


def _to_its_source(together: Sequence[tuple[TensorBucket, int]], parts: Parts, rooms: _Rooms) -> Iterable[Named]:
    """Gather buckets, each on a rank of its own, all at once; the tensors of the one that is this rank's."""
    mine: Iterable[Named] = ()
    works, gathered = [], dict[str, torch.Tensor]()
    for bucket, source in together:
        for lot in bucket.lots:
            if not parts.gives(source, is_split=lot.is_split):
                continue
            everyone = rooms.everyone(lot) if source == parts.rank else None
            if everyone is not None:
                gathered.update(lot.by_tensor(everyone))
            works.append(
                dist.gather(
                    _as_bytes(lot.own(rooms.of((source, lot.is_split), lot.own_bytes, lot.device))),
                    None if everyone is None else list(_as_bytes(everyone).unbind()),
                    group=parts.holders(is_split=lot.is_split),
                    group_dst=parts.place(source, is_split=lot.is_split),
                    async_op=True,
                )
            )
        if source == parts.rank:
            mine = bucket.whole(gathered)
    for work in works:
        work.wait()
    return mine


class _Rooms:
    """Memory that is used again, by what it is for; each grows to the most that was asked for."""

    def __init__(self) -> None:
        self._memory: dict[object, torch.Tensor] = {}

    def of(self, use: object, num_bytes: int, device: torch.device) -> torch.Tensor:
        """uint8 [num_bytes]."""
        memory = self._memory.get(use)
        if memory is None or memory.numel() < num_bytes:
            memory = self._memory[use] = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        return memory[:num_bytes]

    def everyone(self, lot: Lot) -> torch.Tensor:
        """[ranks, sum(sizes)], where this rank gathers, the same memory every time."""
        memory = self.of(lot.is_split, lot.num_ranks * lot.own_bytes, lot.device)
        return memory.view(lot.dtype).view(lot.num_ranks, -1)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Not every backend of collectives knows every dtype."""
    return tensor.view(torch.uint8)
