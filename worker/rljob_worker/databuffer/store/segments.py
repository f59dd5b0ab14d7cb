"""Leased ranges of the arena, or of the spill file, and who still reads them.

    reserve ──▶ written, readers set ──release by each reader──▶ freed ──▶ requests that wait for room retry

What finds no room in memory is opened on disk, if there is a spill file, and stays where it is: somebody may have it
mapped.
All calls are made under the lock of the `Monitor`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rljob_worker.databuffer.protocol.contents import Contents
from rljob_worker.databuffer.store.segment_files import Allocator, SegmentFile, rounded, start_of_spill
from rljob_worker.errors import DeadlineExceeded


@dataclass(frozen=True, slots=True, order=True)
class SegmentReader:
    """Somebody who must still read a segment: a rank of this host, or the data buffer of a host for a share."""

    where: str
    share: int

    @staticmethod
    def rank(rank: int) -> SegmentReader:
        return SegmentReader("rank", rank)

    @property
    def is_rank(self) -> bool:
        return self.where == "rank"

    def __str__(self) -> str:
        if self.is_rank:
            return f"rank {self.share} of this host"
        return f"host {self.where} (share {self.share})"


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """What lies in a segment: a part or a share of an edge's step."""

    edge: str
    step: int
    what: str
    number: int

    def __str__(self) -> str:
        return f"{self.what} {self.number} of edge {self.edge}, step {self.step}"


@dataclass(slots=True, eq=False)
class Segment:
    """A leased range. `readers` is None until somebody has decided who reads it."""

    item: Item
    offset: int
    num_bytes: int
    since: float
    contents: Contents | None = None
    readers: set[SegmentReader] | None = None


class Segments:
    """Everything that is held, and the queue for room."""

    def __init__(
        self,
        capacity: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        disk: Allocator | None = None,
        spilled: Callable[[str, int], None] = lambda edge, num_bytes: None,
    ) -> None:
        """capacity: of the arena. spilled: hears the edge and the bytes of every segment that is opened on disk."""
        self.memory = Allocator(capacity)
        self.disk = disk or Allocator(0, start=self.memory.capacity)
        self._clock = clock
        self._spilled = spilled
        self._held: dict[int, Segment] = {}
        self._queue: list[Callable[[], bool]] = []
        self._is_serving = False
        self._is_due = False

    @staticmethod
    def of(
        places: Sequence[SegmentFile],
        weights_bytes: int,
        clock: Callable[[], float],
        spilled: Callable[[str, int], None],
    ) -> Segments:
        """Those of the arena, except the slots of weights at its end, and of the spill file if there is one."""
        arena, *spill = (place.num_bytes for place in places)
        disk = Allocator(spill[0], start_of_spill(arena)) if spill else None
        return Segments(arena - weights_bytes, clock, disk=disk, spilled=spilled)

    def held(self) -> list[Segment]:
        """Oldest first."""
        return sorted(self._held.values(), key=lambda segment: segment.since)

    # ---- room

    def try_reserve(self, item: Item, num_bytes: int) -> Segment | None:
        """A fresh segment, on disk where memory has no room; None when there is no room now."""
        segment = self._lease(item, self.memory.allocate(num_bytes), num_bytes)
        if segment is None:
            segment = self._lease(item, self.disk.allocate(num_bytes), num_bytes)
            if segment is not None:
                self._spilled(item.edge, segment.num_bytes)
        return segment

    def largest_left(self, num_bytes: int) -> int:
        """Bytes of the largest free range after a reservation of `num_bytes`; -1 where that finds no room."""
        memory, disk, length = self.memory.largest_free, self.disk.largest_free, rounded(num_bytes)
        if length <= memory:
            return max(memory - length, disk)
        return max(memory, disk - length) if length <= disk else -1

    def most_beside(self, kept: Iterable[Segment]) -> int:
        """Bytes of the largest segment that there can be room for while others are kept where they are."""
        left = {place.start: place.capacity for place in (self.memory, self.disk)}
        for segment in kept:
            left[self._place_of(segment.offset).start] -= segment.num_bytes
        return max(left.values())

    def when_room(self, attempt: Callable[[], bool]) -> None:
        """Try now, and again after every release until it succeeds; in the order in which they came."""
        self._queue.append(attempt)
        self._serve()

    def drop(self, segment: Segment) -> None:
        """Give a segment's room back, even if it has readers."""
        if self._held.get(segment.offset) is not segment:
            return
        del self._held[segment.offset]
        self._place_of(segment.offset).free(segment.offset)
        self._serve()

    # ---- readers

    def set_readers(self, segment: Segment, readers: Iterable[SegmentReader]) -> None:
        """Decide who reads a segment; with nobody it goes at once."""
        segment.readers = set(readers)
        self._drop_when_read(segment)

    def add_readers(self, segment: Segment, readers: Iterable[SegmentReader]) -> None:
        assert segment.readers, f"{segment.item} has already gone"
        segment.readers |= set(readers)

    def release(self, segment: Segment, reader: SegmentReader) -> None:
        """One reader is done."""
        if segment.readers is not None:
            segment.readers.discard(reader)
            self._drop_when_read(segment)

    def _drop_when_read(self, segment: Segment) -> None:
        if not segment.readers:
            self.drop(segment)

    def _lease(self, item: Item, offset: int | None, num_bytes: int) -> Segment | None:
        if offset is None:
            return None
        segment = Segment(item, offset, rounded(num_bytes), self._clock())
        self._held[offset] = segment
        return segment

    def _place_of(self, offset: int) -> Allocator:
        return self.memory if offset < self.disk.start else self.disk

    def _serve(self) -> None:
        self._is_due = True
        if self._is_serving:  # an attempt that succeeds may free something itself
            return
        self._is_serving = True
        try:
            while self._is_due:
                self._is_due = False
                waiting, self._queue = self._queue, []
                self._queue = [attempt for attempt in waiting if not attempt()] + self._queue
        finally:
            self._is_serving = False

    # ---- words

    def refuse_hopeless(self, item: Item, num_bytes: int, kept: Sequence[Segment], why: str) -> None:
        """Raises DeadlineExceeded when no wait can help: there is no room next to what is kept for longer.

        why: in words that complete "they ...".
        """
        if rounded(num_bytes) <= self.most_beside(kept):
            return
        kept_bytes = sum(segment.num_bytes for segment in kept)
        beside = f", while {kept_bytes:,} bytes in the same data buffer {why}" if kept else ""
        spill = f" and dataBuffer.spill {self.disk.capacity:,} in one piece" if self.disk.capacity else ""
        raise DeadlineExceeded(
            f"no room for {item}: {num_bytes:,} bytes{beside}, so waiting cannot help. dataBuffer.memory leaves "
            f"{self.memory.capacity:,} bytes for rows{spill}; this step needs at least "
            f"{kept_bytes + rounded(num_bytes):,}: raise {self._knob}"
        )

    def explain_full(self, item: Item, num_bytes: int, seconds: float) -> str:
        """Message of a reservation that found no room: how much is missing, and the readers that are late."""
        held = self.held()
        late = "; ".join(explain_late(segment) for segment in held[:3])
        on_disk = f" in memory and {_free(self.disk)} on disk" if self.disk.capacity else ""
        return (
            f"no room for {item}: {num_bytes:,} bytes needed, largest free range {_free(self.memory)}{on_disk} after "
            f"{seconds:.1f} s. Oldest of {len(held)} segments: {late or 'none'}. If the reader is healthy, raise "
            f"{self._knob}"
        )

    @property
    def _knob(self) -> str:
        """What gives more room."""
        return "dataBuffer.spill.limit" if self.disk.capacity else "dataBuffer.memory"


def explain_late(segment: Segment) -> str:
    """Who keeps a segment in memory."""
    if segment.readers is None:
        waiting = "whose readers are not known yet" if segment.contents else "still being written"
        return f"{segment.item}, {waiting}"
    return f"{segment.item}, not yet read by {', '.join(str(reader) for reader in sorted(segment.readers))}"


def _free(place: Allocator) -> str:
    return f"{place.largest_free:,} of {place.capacity:,}"
