"""What one data buffer holds: segments and who still reads them. Knows nothing of the network.

    reserve ──▶ sealed, readers set ──release by each reader──▶ freed

All waiting happens here, bounded, on one condition: every change wakes the waiters, who look again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from rljob_worker.databuffer.arena import Allocator, rounded
from rljob_worker.databuffer.rows.segment import Contents
from rljob_worker.errors import DeadlineExceeded, PeerLost, RLJobError

T = TypeVar("T")

REMEMBERED_STEPS = 8


@dataclass(frozen=True, slots=True, order=True)
class Reader:
    """Somebody who must still read a segment: a rank of this host, or the data buffer of a host for a share."""

    where: str
    share: int = -1

    @staticmethod
    def rank(rank: int) -> Reader:
        return Reader("rank", rank)

    def __str__(self) -> str:
        if self.where == "rank":
            return f"rank {self.share} of this host"
        return f"host {self.where}" + (f" (share {self.share})" if self.share >= 0 else "")


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """Name of a segment: what of which edge and step, such as part 3 or chunk 0."""

    edge: str
    step: int
    what: str
    number: int

    def __str__(self) -> str:
        return f"{self.what} {self.number} of edge {self.edge}, step {self.step}"


@dataclass(slots=True, eq=False)
class Segment:
    """A leased range of the arena. `readers` is None until somebody has decided who reads it."""

    item: Item
    offset: int
    num_bytes: int
    since: float
    contents: Contents | None = None
    checksum: int = 0
    readers: set[Reader] | None = None


@dataclass(slots=True)
class EdgeStep:
    """One step of one edge on this host."""

    parts: dict[int, Segment] = field(default_factory=dict)
    sealed_parts: set[int] = field(default_factory=set)
    shares: dict[int, Segment] = field(default_factory=dict)
    started_shares: set[int] = field(default_factory=set)
    failures: dict[int, RLJobError] = field(default_factory=dict)
    """Share -> why it cannot be had; -1 for all shares."""


class Store:
    """Segments by name, their readers, and the waits for both."""

    def __init__(self, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.allocator = Allocator(capacity)
        self.changed = threading.Condition(threading.RLock())
        self._clock = clock
        self._closed = False
        self._segments: dict[int, Segment] = {}
        self._steps: dict[str, dict[int, EdgeStep]] = {}

    # ---- waiting

    @contextmanager
    def change(self) -> Iterator[None]:
        """Hold the lock; wake all waiters at the end."""
        with self.changed:
            yield
            self.changed.notify_all()

    def wait(self, ready: Callable[[], T], seconds: float) -> T:
        """What `ready` returns, called under the lock, once that is not None or when `seconds` have passed."""
        end = self._clock() + seconds
        with self.changed:
            while (value := ready()) is None:
                if self._closed:
                    raise PeerLost("this data buffer is shutting down")
                left = end - self._clock()
                if left <= 0:
                    break
                self.changed.wait(left)
            return value

    def close(self) -> None:
        """Nobody waits any longer: waiters get PeerLost."""
        with self.change():
            self._closed = True

    # ---- space

    def try_reserve(self, item: Item, num_bytes: int) -> Segment | None:
        """A fresh segment, or None when there is no room now."""
        with self.changed:
            offset = self.allocator.allocate(num_bytes)
            if offset is None:
                return None
            segment = Segment(item, offset, rounded(num_bytes), self._clock())
            self._segments[offset] = segment
            return segment

    def reserve(self, item: Item, num_bytes: int, seconds: float) -> Segment:
        """A fresh segment, waited for; DeadlineExceeded names who keeps the space."""
        hopeless = rounded(num_bytes) > self.allocator.capacity
        segment = None if hopeless else self.wait(lambda: self.try_reserve(item, num_bytes), seconds)
        if segment is None:
            raise DeadlineExceeded(self.explain_full(item, num_bytes, seconds))
        return segment

    def segment_at(self, offset: int) -> Segment:
        return self._segments[offset]

    def drop(self, segment: Segment) -> None:
        """Give a segment's space back, whoever reads it."""
        with self.change():
            if self._segments.pop(segment.offset, None) is not None:
                self.allocator.free(segment.offset)

    def set_readers(self, segment: Segment, readers: Iterable[Reader]) -> None:
        """Decide who reads a segment; with nobody it goes at once."""
        with self.change():
            segment.readers = set(readers)
            self._free_when_read(segment)

    def add_readers(self, segment: Segment, readers: Iterable[Reader]) -> None:
        with self.change():
            assert segment.readers, f"{segment.item} has already gone"
            segment.readers |= set(readers)

    def release(self, segment: Segment, reader: Reader) -> None:
        """One reader is done; releasing twice is allowed, an acknowledgement may be sent again."""
        with self.change():
            if segment.readers is not None:
                segment.readers.discard(reader)
                self._free_when_read(segment)

    def _free_when_read(self, segment: Segment) -> None:
        if segment.readers or self._segments.get(segment.offset) is not segment:
            return
        self.drop(segment)
        for steps in self._steps.get(segment.item.edge, {}).values():
            steps.parts = {number: kept for number, kept in steps.parts.items() if kept is not segment}

    # ---- steps

    def step(self, edge: str, step: int) -> EdgeStep:
        """State of one step of an edge; steps far behind the newest are forgotten once their segments are gone."""
        with self.changed:
            steps = self._steps.setdefault(edge, {})
            if step not in steps:
                steps[step] = EdgeStep()
                for old in [s for s, state in steps.items() if s <= step - REMEMBERED_STEPS and not state.parts]:
                    del steps[old]
            return steps[step]

    def seal_part(self, segment: Segment, contents: Contents) -> None:
        """A producer's part is complete; its readers are set separately."""
        with self.change():
            state = self.step(segment.item.edge, segment.item.step)
            assert segment.item.number not in state.sealed_parts, f"{segment.item} was put twice"
            segment.contents = contents
            state.parts[segment.item.number] = segment
            state.sealed_parts.add(segment.item.number)

    def fail(self, edge: str, step: int, error: RLJobError, share: int = -1) -> None:
        """Nobody shall wait for this any longer: waiters get `error`."""
        with self.change():
            self.step(edge, step).failures.setdefault(share, error)

    # ---- what is held

    @property
    def used_bytes(self) -> int:
        with self.changed:
            return self.allocator.used

    @property
    def free_bytes(self) -> int:
        return self.allocator.capacity - self.used_bytes

    def segments(self) -> list[Segment]:
        """Everything held, oldest first."""
        with self.changed:
            return sorted(self._segments.values(), key=lambda segment: segment.since)

    def explain_full(self, item: Item, num_bytes: int, seconds: float) -> str:
        """Message of a put or a get that found no space: how much is missing, and the readers that are late."""
        held = self.segments()
        late = "; ".join(explain_late(segment) for segment in held[:3])
        return (
            f"no room for {item}: {num_bytes:,} bytes needed, largest free range {self.allocator.largest_free:,} of "
            f"{self.allocator.capacity:,} after {seconds:.1f} s. Oldest of {len(held)} segments: {late or 'none'}. "
            "If the reader is healthy, raise dataBuffer.memory"
        )


def explain_late(segment: Segment) -> str:
    """Who keeps a segment in memory."""
    if segment.readers is None:
        waiting = "whose layout is not complete" if segment.contents else "still being written"
        return f"{segment.item}, {waiting}"
    return f"{segment.item}, not yet read by {', '.join(str(reader) for reader in sorted(segment.readers))}"
