"""Weights by broadcasts: every source to its groups of receivers, bucket by bucket, the sources in turn.

A source has a group for each rank of a copy: of all receivers that keep the slices of that rank, and nothing else goes
there. What several ranks keep goes to the group of each.

    source 0   gather  send ──▶      gather  send ──▶           a bucket is gathered while the one before it is still
    source 1   gather     send ──▶   gather     send ──▶        on its way; all gather together (`weight_buckets`)
    receiver            0    1                0    1            what comes next arrives while the last is copied

A turn is one bucket in any number of chunks, and every broadcast of a chunk follows one that says how long it is. All
receivers take the turns in the same order, so that communicators that share a device never wait for each other in a
cycle. A source that has launched its turn goes on to gather the next, for which it needs no receiver; so receivers
wait for sources only, and sources for their own receivers or for a gathering that all sources come to. A turn
is one in every group of a source.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import torch

from rljob_api.planning.weights.flows import BROADCAST_BYTES, WINDOW, WeightFlow
from rljob_worker.errors import PeerLost
from rljob_worker.weights.broadcast_group import SOURCE, BroadcastGroup
from rljob_worker.weights.chunks import ALIGNMENT, ChunkWriter, Received
from rljob_worker.weights.endpoints import Named, Receiver, Sender
from rljob_worker.weights.slices import ranks_of

CHUNK, TURN_ENDS, ALL_SENT = 0, 1, 2
"""What a head announces: a table and its chunk, that another source is next, that this source has sent everything."""

Slots = list[torch.Tensor]


@dataclass(frozen=True)
class CollectiveTransport:
    """The transport: what a rank needs to send or to receive."""

    attempt: int
    backend: str
    device: torch.device
    deadline_seconds: float
    slot_bytes: int = BROADCAST_BYTES

    def sender(self, flow: WeightFlow, rank: int) -> Sender:
        number, copy_ranks = flow.source_ranks.index(rank), range(flow.tensor)
        return CollectiveSender(
            lambda meeting: [self._join(meeting, flow, number, copy_rank, SOURCE) for copy_rank in copy_ranks],
            lambda: [self._slots(flow) for _ in copy_ranks],
        )

    def receiver(self, flow: WeightFlow, group: str, rank: int) -> Receiver:
        copy, copy_rank = divmod(flow.receivers_before(group) + rank, flow.tensor)
        numbers = range(len(flow.source_ranks))
        return CollectiveReceiver(
            lambda meeting: [self._join(meeting, flow, number, copy_rank, 1 + copy) for number in numbers],
            lambda: self._slots(flow),
            self.device,
        )

    def _join(self, meeting: str, flow: WeightFlow, number: int, copy_rank: int, member: int) -> BroadcastGroup:
        return BroadcastGroup.join(
            meeting,
            f"{flow.name}/{number}/{copy_rank}/{self.attempt}",
            member,
            1 + flow.num_receivers // flow.tensor,
            backend=self.backend,
            seconds=self.deadline_seconds,
            name=f"source {flow.source.name}/{flow.source_ranks[number]} of {flow.name}",
        )

    def _slots(self, flow: WeightFlow) -> Slots:
        """Those of one group: all groups of a source have as much memory as a single one would."""
        size = max(ALIGNMENT, self.slot_bytes // flow.tensor)
        return [torch.empty(size, dtype=torch.uint8, device=self.device) for _ in range(WINDOW)]


class CollectiveSender:
    """A source's ends of its broadcast groups, one for each rank of a copy."""

    def __init__(self, join: Callable[[str], list[BroadcastGroup]], slots: Callable[[], list[Slots]]) -> None:
        """Both in the order of these ranks."""
        self._join, self._make_slots = join, slots
        self._broadcast_groups: list[BroadcastGroup] = []
        self._slots: list[Slots] | None = None
        """Slots of the version before, which has left them."""

    def open(self, meeting: str) -> None:
        self._broadcast_groups = self._join(meeting)

    @contextmanager
    def sending(self, version: int, keep: Collection[int] = ()) -> Iterator[_Out]:
        assert self._broadcast_groups, "weights are sent before the groups were joined"
        slots, self._slots = self._slots or self._make_slots(), None
        out = _Out([_GroupOut(*item, version) for item in zip(self._broadcast_groups, slots, strict=True)])
        yield out
        out.end()
        self._slots = slots

    def close(self) -> None:
        for broadcast_group in self._broadcast_groups:
            broadcast_group.leave()
        self._broadcast_groups, self._slots = [], None


@dataclass(frozen=True)
class _Out:
    """One version on its way out."""

    outs: Sequence[_GroupOut]

    @property
    def room_seconds(self) -> float:
        return sum(out.room_seconds for out in self.outs)

    def send(self, bucket: Iterable[Named]) -> int:
        writers, num_bytes, is_turn = [ChunkWriter(out) for out in self.outs], 0, False
        for name, tensor in bucket:
            for rank in ranks_of(name, len(writers)):
                writers[rank].write(name, tensor)
                num_bytes += tensor.nbytes
            is_turn = True
        for writer, out in zip(writers, self.outs, strict=True):
            writer.seal()
            if is_turn:
                out.say(TURN_ENDS)
        return num_bytes

    def end(self) -> None:
        """Everything has been sent, and has arrived when this returns."""
        for out in self.outs:
            out.say(ALL_SENT)
        for out in self.outs:
            out.await_all()


class _GroupOut:
    """One version on its way to one group: chunks in slots, which are filled again when they have arrived."""

    def __init__(self, broadcast_group: BroadcastGroup, slots: Slots, version: int) -> None:
        self.slot_bytes = len(slots[0])
        self._broadcast_group, self._version, self._slots = broadcast_group, version, slots
        self._under_way: list[list[tuple[Any, torch.Tensor]]] = [[] for _ in slots]
        self._num_chunks = 0
        self.room_seconds = 0.0

    def await_all(self) -> None:
        """Everything that was launched has arrived."""
        for place in range(len(self._slots)):
            self._await(place)

    def reserve(self, num_bytes: int) -> torch.Tensor:
        self._num_chunks += 1
        self._await(self._place)
        return self._slots[self._place][:num_bytes]

    def seal(self, table: bytes, num_bytes: int | None = None) -> None:
        data = self._slots[self._place][:num_bytes]
        self.say(CHUNK, len(table), len(data))
        self._launch(torch.frombuffer(bytearray(table), dtype=torch.uint8).to(data.device))
        if len(data):
            self._launch(data)

    @property
    def _place(self) -> int:
        return self._num_chunks % len(self._slots)

    def say(self, what: int, table_bytes: int = 0, data_bytes: int = 0) -> None:
        """What comes next, or that nothing does."""
        head = torch.tensor([what, self._version, table_bytes, data_bytes])
        self._launch(head.to(self._slots[0].device))

    def _launch(self, tensor: torch.Tensor) -> None:
        # the tensor must live as long as it is sent
        self._under_way[self._place].append((self._broadcast_group.broadcast(tensor), tensor))

    def _await(self, place: int) -> None:
        started = time.perf_counter()
        for work, _ in self._under_way[place]:
            self._broadcast_group.wait(work)
        self.room_seconds += time.perf_counter() - started
        self._under_way[place].clear()


class CollectiveReceiver:
    """A target's ends of the broadcast groups of all sources."""

    def __init__(
        self, join: Callable[[str], list[BroadcastGroup]], slots: Callable[[], Slots], device: torch.device
    ) -> None:
        self._join, self._make_slots, self._device = join, slots, device
        self._broadcast_groups: list[BroadcastGroup] = []
        self._reading: _Reading | None = None

    def open(self, meeting: str) -> None:
        self._broadcast_groups = self._join(meeting)

    def receive(self, version: int) -> Generator[Received, None, None]:
        assert self._broadcast_groups, "weights are received before the groups were joined"
        slots = None if self._reading is None else self._reading.slots_when_done()
        self._reading = _Reading(self._broadcast_groups, version, slots or self._make_slots(), self._device)
        return self._reading.chunks()

    def close(self) -> None:
        for broadcast_group in self._broadcast_groups:
            broadcast_group.leave()
        self._broadcast_groups, self._reading = [], None


@dataclass(frozen=True, slots=True)
class _Chunk:
    table: bytes
    data: torch.Tensor
    slot: torch.Tensor


@dataclass
class _Reading:
    """One version on its way in: a thread of its own reads ahead, as far as there are free slots.

    A receiver that stops early leaves it to read on and discard, so that others get theirs and the next version begins
    at its beginning. It is a daemon: a process that ends waits for no source.
    """

    broadcast_groups: Sequence[BroadcastGroup]
    version: int
    slots: Slots
    device: torch.device
    found: SimpleQueue[_Chunk | BaseException | None] = field(default_factory=SimpleQueue)

    def __post_init__(self) -> None:
        self.free: SimpleQueue[torch.Tensor] = SimpleQueue()
        self.stopped = self.has_all = False
        for slot in self.slots:
            self.free.put(slot)
        self.thread = threading.Thread(target=self._run, name="weights", daemon=True)
        self.thread.start()

    def slots_when_done(self) -> Slots | None:
        """To be used again, once all was read; none where that failed, as something may still write to them."""
        self.thread.join()
        return self.slots if self.has_all else None

    def chunks(self) -> Generator[Received, None, None]:
        try:
            while (result := self.found.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                yield result
                self.free.put(result.slot)
        finally:
            self.stopped = True
            self.free.put(self.slots[0])  # the reader may be waiting for one

    def _run(self) -> None:
        try:
            self._read_all()
            self.has_all = True
            self.found.put(None)
        except BaseException as error:  # raised where the chunks are taken
            self.found.put(error)

    def _read_all(self) -> None:
        left = list(self.broadcast_groups)
        while left:
            left = [broadcast_group for broadcast_group in left if self._read_turn(broadcast_group)]

    def _read_turn(self, broadcast_group: BroadcastGroup) -> bool:
        """Whether the source has more turns."""
        while True:
            what, version, table_bytes, data_bytes = self._get(broadcast_group, 4, torch.int64).tolist()
            if version != self.version:
                raise PeerLost(f"{broadcast_group.name} sends version {version} where version {self.version} is due")
            if what != CHUNK:
                return bool(what == TURN_ENDS)
            self._read_chunk(broadcast_group, table_bytes, data_bytes)

    def _read_chunk(self, broadcast_group: BroadcastGroup, table_bytes: int, data_bytes: int) -> None:
        table = self._get(broadcast_group, table_bytes, torch.uint8).numpy().tobytes()
        slot = self.slots[0] if self.stopped else self.free.get()
        if data_bytes:
            broadcast_group.wait(broadcast_group.broadcast(slot[:data_bytes]))
        self.found.put(_Chunk(table, slot[:data_bytes], slot))

    def _get(self, broadcast_group: BroadcastGroup, num: int, dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(num, dtype=dtype, device=self.device)
        broadcast_group.wait(broadcast_group.broadcast(tensor))
        return tensor.cpu()
