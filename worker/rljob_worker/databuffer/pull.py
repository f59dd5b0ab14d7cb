"""One share of one step, from its sources into one segment of this host.

every source sends a header first     -> all headers known: the segment is laid out (`arrangement`)
a source that is early                -> lands in scratch space meanwhile, so that transfer overlaps the others' compute
all others                            -> each value goes straight to its final place
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, wait
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow.flight as flight
from numpy.typing import NDArray

from rljob_worker.databuffer.hosts import Host
from rljob_worker.databuffer.rows.arrangement import Arrangement, Header, arrange, place
from rljob_worker.databuffer.rows.schema import from_arrow
from rljob_worker.databuffer.rows.segment import Bytes, Views, plan_contents, views
from rljob_worker.databuffer.rows.stream import chunk_bytes_for
from rljob_worker.databuffer.store import Item, Segment, Store
from rljob_worker.databuffer.wire import POLL_SECONDS
from rljob_worker.errors import PeerLost

Int64 = NDArray[np.int64]


PATIENT_SOURCES = 8
"""With more sources than this nobody waits long at any of them."""


class Late(Exception):
    """Sources that had not sealed their parts when the deadline came."""

    def __init__(self, missing: list[tuple[Host, list[int]]]) -> None:
        super().__init__(missing)
        self.missing = missing


class Opens(Protocol):
    """Opens the stream of one host's rows; None while its parts are not sealed."""

    def __call__(
        self, host: Host, parts: Sequence[int], *, wait_seconds: float, chunk_bytes: int, seconds: float
    ) -> flight.FlightStreamReader | None: ...


@dataclass(slots=True)
class Timing:
    """Seconds a share took: until the last producer had sealed, and from then on; bytes that crossed the network."""

    producer_seconds: float = 0.0
    transfer_seconds: float = 0.0
    remote_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Source:
    """One host's rows on their way."""

    header: Future[Header] = field(default_factory=Future)
    landed: Future[Segment | None] = field(default_factory=Future)


class Pull:
    """Runs once; `sources` are hosts with the parts wanted from each, `local` gives this host's own parts."""

    def __init__(
        self,
        *,
        item: Item,
        store: Store,
        memory: Bytes,
        executor: Executor,
        open_stream: Opens,
        attempt: Callable[[Host, Callable[[flight.FlightClient], bool]], bool],
        seconds: float,
    ) -> None:
        self._item = item
        self._store = store
        self._memory = memory
        self._executor = executor
        self._open = open_stream
        self._attempt = attempt
        self._end = time.monotonic() + seconds
        self._num_sources = 0
        self._wait_seconds = POLL_SECONDS
        self._arranged = threading.Event()
        self._abandoned = False
        self._arrangement: Arrangement | None = None
        self._target: Views | None = None
        self.timing = Timing()

    def run(
        self, remote: Sequence[tuple[Host, list[int]]], local: Callable[[float], Sequence[tuple[Views, Int64]]]
    ) -> Segment:
        """The finished segment. Raises Late, PeerLost, BadData or DeadlineExceeded (no room)."""
        start = time.monotonic()
        self._num_sources = len(remote)
        self._wait_seconds = POLL_SECONDS if len(remote) <= PATIENT_SOURCES else POLL_SECONDS / 20
        sources = [_Source() for _ in remote]
        for index, (source, (host, parts)) in enumerate(zip(sources, remote, strict=True)):
            self._executor.submit(self._fetch, index, source, host, parts)
        try:
            own = local(self._left())
            self._await_headers(sources, remote)
            sealed = time.monotonic()
            segment = self._lay_out([s.header.result() for s in sources] + [Header.of(*selection) for selection in own])
            self._finish(sources, own)
        finally:
            # after a failure the segment stays leased: a late stream may still be writing to it, and the gang restarts
            self._abandoned = True
            self._arranged.set()
        self.timing.producer_seconds = sealed - start
        self.timing.transfer_seconds = time.monotonic() - sealed
        return segment

    def _left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def _await_headers(self, sources: Sequence[_Source], remote: Sequence[tuple[Host, list[int]]]) -> None:
        headers = [source.header for source in sources]
        done, _ = wait(headers, self._left(), FIRST_EXCEPTION)
        for header in done:
            header.result()
        if len(done) < len(headers):
            raise Late([where for header, where in zip(headers, remote, strict=True) if not header.done()])

    def _lay_out(self, headers: list[Header]) -> Segment:
        self._arrangement = arrange(headers, self._item.edge)
        contents = self._arrangement.contents
        segment = self._store.reserve(self._item, contents.num_bytes, self._left())
        segment.contents = contents
        self._target = views(self._memory, segment.offset, contents)
        self._arrangement.write_index(self._target)
        self._arranged.set()
        return segment

    def _finish(self, sources: Sequence[_Source], own: Sequence[tuple[Views, Int64]]) -> None:
        assert self._arrangement is not None and self._target is not None
        targets = self._arrangement.targets
        for target, (part, rows) in zip(targets[len(sources) :], own, strict=True):
            place(self._target, target, part, rows)
        for target, source in zip(targets, sources, strict=False):
            scratch = source.landed.result(self._left() + 1.0)
            if scratch is not None:
                assert scratch.contents is not None
                landed = views(self._memory, scratch.offset, scratch.contents)
                place(self._target, target, landed, np.arange(len(target)))
                self._store.drop(scratch)

    # ---- one source, on a thread of the executor

    def _fetch(self, index: int, source: _Source, host: Host, parts: list[int]) -> None:
        """Every failure ends in one of the two futures that the pull waits for.

        A source that has nothing yet goes to the end of the queue: waiting must not keep the threads from other pulls,
        on which the very rows that are waited for may depend.
        """
        try:
            if not self._attempt(host, lambda _: self._receive(index, source, host, parts)):
                self._executor.submit(self._fetch, index, source, host, parts)
        except BaseException as error:
            if not source.header.done():
                source.header.set_exception(error)
            source.landed.set_exception(error)

    def _receive(self, index: int, source: _Source, host: Host, parts: list[int]) -> bool:
        """One try at a source; False when it has not sealed its parts."""
        if self._abandoned or self._left() == 0:
            return True
        reader = self._open(
            host,
            parts,
            wait_seconds=self._wait_seconds,
            chunk_bytes=chunk_bytes_for(self._num_sources),
            seconds=self._left(),
        )
        if reader is None:
            return False
        first = reader.read_chunk()
        header = Header.from_bytes(first.app_metadata, reader.schema)
        if not source.header.done():
            source.header.set_result(header)
        scratch = None if self._arranged.is_set() else self._scratch(header)
        if scratch is None:
            self._arranged.wait()
        if self._abandoned and self._target is None:
            return True
        try:
            self._copy(reader, header, index, scratch)
        except flight.FlightError:
            if scratch is not None:
                self._store.drop(scratch)
            raise
        source.landed.set_result(scratch)
        return True

    def _scratch(self, header: Header) -> Segment | None:
        """Room for an early source, only if there is plenty: it must not take the room of the segment itself."""
        rows = len(header.index)
        sizes = {
            name: (kind, int(header.lengths[name].sum()) if kind.ragged else rows)
            for name, kind in header.kinds.items()
        }
        contents = plan_contents(rows, sizes)
        if self._store.free_bytes < self._store.allocator.capacity // 2:
            return None
        segment = self._store.try_reserve(Item(self._item.edge, self._item.step, "early rows", 0), contents.num_bytes)
        if segment is not None:
            segment.contents = contents
        return segment

    def _copy(self, reader: flight.FlightStreamReader, header: Header, index: int, scratch: Segment | None) -> None:
        if scratch is not None:
            assert scratch.contents is not None
            into = views(self._memory, scratch.offset, scratch.contents)
            rows = np.arange(len(header.index))
            Arrangement(scratch.contents, header, ()).write_index(into)
        else:
            assert self._arrangement is not None and self._target is not None
            into, rows = self._target, self._arrangement.targets[index]
        done = 0
        for chunk in reader:
            batch = from_arrow(chunk.data)
            place(into, rows[done : done + len(batch)], batch, np.arange(len(batch)))
            done += len(batch)
            self.timing.remote_bytes += chunk.data.nbytes
        if done != len(rows):
            raise PeerLost(f"a stream of {self._item} ended after {done} of {len(rows)} rows")
