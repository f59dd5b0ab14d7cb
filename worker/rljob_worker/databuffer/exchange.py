"""Rows between stages: what this host's data buffer does for its workers and for its peers. No wire format here.

worker: reserve, seal, get, release        peer: rows (a stream), acknowledge
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pyarrow.flight as flight
from numpy.typing import NDArray

from rljob_worker.databuffer.arena import rounded
from rljob_worker.databuffer.hosts import FAN_OUT, Host, Worker
from rljob_worker.databuffer.lateness import Lateness
from rljob_worker.databuffer.layout_tree import LayoutTree, share_readers
from rljob_worker.databuffer.metrics import BufferMetrics
from rljob_worker.databuffer.peers import Peers
from rljob_worker.databuffer.pull import Late, Pull
from rljob_worker.databuffer.routing import RowsRoute, StageRoute, sources_by_host
from rljob_worker.databuffer.rows.segment import Bytes, Contents, Views, views
from rljob_worker.databuffer.rows.stream import Selection
from rljob_worker.databuffer.store import Item, Reader, Segment, Store, explain_late
from rljob_worker.databuffer.wire import POLL_SECONDS, Pending, ticket
from rljob_worker.errors import DeadlineExceeded, RLJobError

Int64 = NDArray[np.int64]

MAX_STREAMS = 32
MAX_PULLS = 128
MAX_MESSAGES = 16


class Exchange:
    """All row edges of one host."""

    def __init__(
        self,
        *,
        here: Host,
        routes: dict[str, RowsRoute],
        store: Store,
        memory: Bytes,
        peers: Peers,
        metrics: BufferMetrics,
        last_words: Callable[[int], str],
        fan_out: int = FAN_OUT,
    ) -> None:
        self._here = here
        self._routes = routes
        self._store = store
        self._memory = memory
        self._peers = peers
        self._metrics = metrics
        self.layouts = LayoutTree(here, routes, store, peers, self._in_background, fan_out)
        self.lateness = Lateness(here, routes, store, peers, last_words)
        self._timings: dict[tuple[str, int, int], dict[str, float]] = {}
        self._lock = threading.Lock()
        self._streams = ThreadPoolExecutor(MAX_STREAMS, "stream")
        self._pulls = ThreadPoolExecutor(MAX_PULLS, "pull")
        self._messages = ThreadPoolExecutor(MAX_MESSAGES, "message")

    def close(self) -> None:
        """Start no more work."""
        for pool in (self._streams, self._pulls, self._messages):
            pool.shutdown(wait=False, cancel_futures=True)

    # ---- producing

    def reserve(self, worker: Worker, edge: str, step: int, num_bytes: int, seconds: float) -> Segment:
        """Room for a worker's part. Raises Pending after a while, DeadlineExceeded when time is up or hopeless."""
        route = self._routes[edge]
        part = route.part_of(worker)
        assert part is not None, f"{worker} puts nothing on edge {edge}"
        item = Item(edge, step, "part", part)
        self._refuse_hopeless(route, item, num_bytes)
        segment = self._store.wait(lambda: self._store.try_reserve(item, num_bytes), min(seconds, POLL_SECONDS))
        if segment is not None:
            return segment
        if seconds <= POLL_SECONDS:
            raise DeadlineExceeded(self._store.explain_full(item, num_bytes, seconds))
        raise Pending

    def seal(self, offset: int, contents: Contents) -> None:
        """A part is written: decide who reads it, or tell the others what is in it."""
        segment = self._store.segment_at(offset)
        route, item = self._routes[segment.item.edge], segment.item
        part = views(self._memory, offset, contents)
        self._metrics.put(item.edge, len(part.index), contents.num_bytes)
        if route.needs_layouts:
            self._store.seal_part(segment, contents)
            self.layouts.part_sealed(item.edge, item.step, item.number, part)
            return
        shares, fed = self._shares_of(segment, part), list(route.shares_fed_by(item.number))
        strays = np.setdiff1d(shares, fed)
        assert not len(strays), f"{item} has rows of ranks {strays} of stage {route.stage}; by ordinal it feeds {fed}"
        with (
            self._store.change()
        ):  # who sees the part sealed may acknowledge at once, and needs its readers to be known
            self._store.seal_part(segment, contents)
            self._store.set_readers(segment, share_readers(route, fed))

    def rows(self, edge: str, step: int, share: int, parts: Sequence[int], seconds: float) -> list[Selection]:
        """The rows of `share` in some parts of this host; raises Pending while they are not sealed."""
        found = self._store.wait(lambda: self._sealed(edge, step, parts), seconds)
        if found is None:
            raise Pending
        return [(part, np.flatnonzero(self._shares_of(segment, part) == share)) for segment, part in found]

    def acknowledge(self, edge: str, step: int, share: int, parts: Sequence[int], host: str) -> None:
        """A data buffer has copied the rows it asked for."""
        with self._store.changed:
            held = self._store.step(edge, step).parts
            segments = [held[part] for part in parts if part in held]
        for segment in segments:
            self._store.release(segment, Reader(host, share))

    def unread(self, worker: Worker) -> list[Segment]:
        """What a worker has put and somebody has not read."""
        return [segment for segment in self._store.segments() if self._is_from(segment, worker)]

    def drained(self, worker: Worker, seconds: float) -> bool:
        """Whether everything a worker put has been read; waits for it."""
        return self._store.wait(lambda: None if self.unread(worker) else True, seconds) is True

    def late_readers(self, worker: Worker, seconds: float) -> DeadlineExceeded:
        """Why a worker cannot leave: who has not read what it put."""
        late = "; ".join(explain_late(segment) for segment in self.unread(worker)[:8])
        return DeadlineExceeded(f"{worker} waited {seconds:.1f} s for what it put to be read: {late or 'broadcasts'}")

    # ---- consuming

    def get(self, worker: Worker, edge: str, step: int, seconds: float) -> tuple[Segment, dict[str, float]]:
        """The share of a worker's data-parallel rank, mapped by all its tensor-parallel peers; raises Pending."""
        share = self._routes[edge].share_of(worker)
        assert share is not None, f"{worker} reads nothing from edge {edge}"
        state = self._store.step(edge, step)
        with self._lock:
            if share not in state.started_shares:
                state.started_shares.add(share)
                self._pulls.submit(self._pull, edge, step, share, seconds)

        def ready() -> Segment | RLJobError | None:
            return state.failures.get(share) or state.failures.get(-1) or state.shares.get(share)

        found: Segment | RLJobError | None = self._store.wait(ready, POLL_SECONDS)
        if found is None:
            raise Pending
        if isinstance(found, RLJobError):
            raise found
        return found, self._timings.get((edge, step, share), {})

    def release(self, worker: Worker, edge: str, step: int) -> None:
        """A worker does not look at its share any more."""
        share = self._routes[edge].share_of(worker)
        assert share is not None
        with self._store.changed:
            segment = self._store.step(edge, step).shares.get(share)
        if segment is not None:
            self._store.release(segment, Reader.rank(worker.rank))

    def _pull(self, edge: str, step: int, share: int, seconds: float) -> None:
        """Runs on a thread of its own; whatever happens ends in the store, where the workers wait."""
        try:
            self._pull_share(self._routes[edge], step, share, seconds)
        except Late as late:
            self._store.fail(edge, step, self.lateness.error(edge, step, late, seconds), share)
        except RLJobError as error:
            self._store.fail(edge, step, error, share)
        except Exception as error:  # a bug of ours: it must reach the workers, who would wait until the deadline
            self._store.fail(edge, step, RLJobError(f"edge {edge}, step {step}: {error!r}"), share)
            raise

    def _pull_share(self, route: RowsRoute, step: int, share: int, seconds: float) -> None:
        start = time.monotonic()
        by_host = sources_by_host(route, self._sources(route, step, share, seconds))
        own = by_host.pop(self._here, [])
        left = seconds - (time.monotonic() - start)
        readers = [Reader.rank(rank) for rank in route.readers(self._here, share)]
        whole = None if by_host else self._whole_part(route.name, step, share, own, left)
        if whole is not None:
            self._store.add_readers(whole, readers)
            self._finish(route.name, step, share, whole, {"producer_seconds": time.monotonic() - start})
        else:
            pull = self._build_pull(route.name, step, share, left)
            segment = pull.run(list(by_host.items()), lambda left: self._own_rows(route.name, step, share, own, left))
            self._store.set_readers(segment, readers)
            waited = time.monotonic() - start - pull.timing.transfer_seconds
            timing = {"producer_seconds": waited, "transfer_seconds": pull.timing.transfer_seconds}
            self._metrics.got(route.name, timing, pull.timing.remote_bytes)
            self._finish(route.name, step, share, segment, timing)
        self.acknowledge(route.name, step, share, own, str(self._here))
        for host, parts in by_host.items():
            self._send_acknowledgement(host, route.name, step, share, parts)

    def _build_pull(self, edge: str, step: int, share: int, seconds: float) -> Pull:
        return Pull(
            item=Item(edge, step, "share", share),
            store=self._store,
            memory=self._memory,
            executor=self._streams,
            open_stream=partial(self._open, edge, step, share),
            attempt=self._peers.attempt,
            seconds=seconds,
        )

    def _open(
        self,
        edge: str,
        step: int,
        share: int,
        host: Host,
        parts: Sequence[int],
        *,
        wait_seconds: float,
        chunk_bytes: int,
        seconds: float,
    ) -> flight.FlightStreamReader | None:
        asked = ticket(edge, step, share, parts, wait_seconds=wait_seconds, chunk_bytes=chunk_bytes)
        return self._peers.open(host, asked, seconds)

    def _sources(self, route: RowsRoute, step: int, share: int, seconds: float) -> Sequence[int]:
        if route.needs_layouts:
            return self.layouts.wait(route, step, seconds).sources(share)
        return route.sources(share)

    def _whole_part(self, edge: str, step: int, share: int, own: list[int], seconds: float) -> Segment | None:
        """The part of this host that is exactly the share, if there is one: it is mapped as it is, without a copy."""
        if len(own) != 1:
            return None
        found = self._store.wait(lambda: self._sealed(edge, step, own), seconds)
        if found is None:
            raise Late([(self._here, own)])
        segment, part = found[0]
        return segment if bool((self._shares_of(segment, part) == share).all()) else None

    def _own_rows(self, edge: str, step: int, share: int, own: list[int], seconds: float) -> list[Selection]:
        if not own:
            return []
        try:
            return self.rows(edge, step, share, own, seconds)
        except Pending:
            raise Late([(self._here, own)]) from None

    def _finish(self, edge: str, step: int, share: int, segment: Segment, timing: dict[str, float]) -> None:
        with self._store.change():
            self._timings[edge, step, share] = timing
            self._store.step(edge, step).shares[share] = segment
            for old in [key for key in self._timings if key[0] == edge and key[1] < step - 1]:
                del self._timings[old]

    def _sealed(self, edge: str, step: int, parts: Sequence[int]) -> list[tuple[Segment, Views]] | None:
        """Parts of this host, once all are sealed and it is known who gets which of their rows."""
        held = self._store.step(edge, step).parts
        if any(part not in held for part in parts):
            return None
        if self._routes[edge].needs_layouts and self.layouts.assignment(edge, step) is None:
            return None
        return [(held[part], _views(self._memory, held[part])) for part in parts]

    def _shares_of(self, segment: Segment, part: Views) -> Int64:
        """Share of every row of a part."""
        item = segment.item
        assignment = self.layouts.assignment(item.edge, item.step)
        if assignment is not None:
            return assignment.shares_of_part(item.number)
        index = part.index
        return self._routes[item.edge].assign(item.step, index.row_ids, index.group_ids, index.num_tokens)

    # ---- talking to peers

    def _send_acknowledgement(self, host: Host, edge: str, step: int, share: int, parts: list[int]) -> None:
        body = {"edge": edge, "step": step, "share": share, "parts": parts, "host": str(self._here)}
        self._in_background(edge, step, lambda: self._peers.act(host, "release", body))

    def _in_background(self, edge: str, step: int, call: Callable[[], Any]) -> None:
        def run() -> None:
            try:
                call()
            except RLJobError as error:
                self._store.fail(edge, step, error)

        self._messages.submit(run)

    # ---- space that can never come free

    def _refuse_hopeless(self, route: RowsRoute, item: Item, num_bytes: int) -> None:
        """Fail at once when the space is held for later stages of this very host, which run only after this put."""
        waiting = sum(s.num_bytes for s in self._store.segments() if self._is_for_later(route, item, s))
        needed, capacity = waiting + rounded(num_bytes), self._store.allocator.capacity
        if needed > capacity:
            raise DeadlineExceeded(
                f"no room for {item}: {num_bytes:,} bytes, while {waiting:,} bytes wait in the same data buffer for "
                f"stages that run later on this host, so waiting cannot help. dataBuffer.memory is {capacity:,} bytes; "
                f"this step needs at least {needed:,}"
            )

    def _is_for_later(self, route: RowsRoute, item: Item, segment: Segment) -> bool:
        other = self._routes.get(segment.item.edge)
        if not (isinstance(route, StageRoute) and isinstance(other, StageRoute)):
            return False
        return segment.item.what == "part" and segment.item.step >= item.step and route.is_later(other)

    def _is_from(self, segment: Segment, worker: Worker) -> bool:
        route = self._routes.get(segment.item.edge)
        return route is not None and segment.item.what == "part" and route.producer(segment.item.number)[0] == worker


def _views(memory: Bytes, segment: Segment) -> Views:
    assert segment.contents is not None
    return views(memory, segment.offset, segment.contents)
