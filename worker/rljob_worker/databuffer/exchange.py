"""Rows between stages: what this host's data buffer does for its workers and for its peers. No wire format here.

worker: reserve, seal, get, release        peer: rows (a stream), layout, release, missing
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow.flight as flight
from numpy.typing import NDArray

from rljob_worker.databuffer.arena import rounded
from rljob_worker.databuffer.layouts import Assignment, Gathering, Layout
from rljob_worker.databuffer.metrics import BufferMetrics
from rljob_worker.databuffer.peers import Peers
from rljob_worker.databuffer.pull import Late, Pull
from rljob_worker.databuffer.routing import FAN_OUT, Host, RowsRoute, StageRoute, Worker, tree_parent
from rljob_worker.databuffer.rows import Selection
from rljob_worker.databuffer.segment import Bytes, Contents, Views, views
from rljob_worker.databuffer.store import Item, Reader, Segment, Store, explain_late
from rljob_worker.databuffer.wire import POLL_SECONDS, Pending, encode_layout, ticket
from rljob_worker.errors import DeadlineExceeded, RLJobError

Int64 = NDArray[np.int64]

MAX_STREAMS = 128
MAX_PULLS = 128
PROBE_SECONDS = 2.0
"""Nobody calls a host whose layout travels up a tree: whoever waits looks from time to time whether it lives."""
PROBED_HOSTS = 16


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
        self._fan_out = fan_out
        self._last_words = last_words
        self._gatherings: dict[tuple[str, int], Gathering] = {}
        self._assignments: dict[tuple[str, int], Assignment] = {}
        self._timings: dict[tuple[str, int, int], dict[str, float]] = {}
        self._lock = threading.Lock()
        self._streams = ThreadPoolExecutor(MAX_STREAMS, "stream")
        self._pulls = ThreadPoolExecutor(MAX_PULLS, "pull")

    def close(self) -> None:
        """Start no more work."""
        for pool in (self._streams, self._pulls):
            pool.shutdown(wait=False, cancel_futures=True)

    # ---- producing

    def reserve(self, worker: Worker, edge: str, step: int, num_bytes: int, seconds: float) -> Segment:
        """Room for a worker's part. Raises Pending after a while, DeadlineExceeded when `seconds` are over or hopeless."""
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
        self._store.seal_part(segment, contents)
        self._metrics.put(item.edge, len(part.row_ids), contents.num_bytes)
        if route.needs_layouts:
            layout = Layout.of_part(item.number, part.row_ids, part.group_ids, part.num_tokens)
            self._spread_up(item.edge, item.step, self._gathering(item.edge, item.step).add_part, item.number, layout)
            return
        shares = route.assign(item.step, part.row_ids, part.group_ids, part.num_tokens)
        fed = route.shares_fed_by(item.number)
        strays = np.setdiff1d(shares, fed)
        assert not len(strays), f"{item} has rows of ranks {strays} of stage {route.stage}; by ordinal it feeds {fed}"
        self._store.set_readers(segment, self._readers(route, fed))

    def rows(self, edge: str, step: int, share: int, parts: Sequence[int], seconds: float) -> list[Selection]:
        """The rows of `share` in some parts of this host; raises Pending while they are not sealed."""
        found = self._store.wait(lambda: self._sealed(edge, step, parts), seconds)
        if found is None:
            raise Pending
        return [(part, np.flatnonzero(self._shares_of(edge, step, segment, part) == share)) for segment, part in found]

    def acknowledge(self, edge: str, step: int, share: int, parts: Sequence[int], host: str) -> None:
        """Another data buffer has copied the rows it asked for."""
        with self._store.changed:
            held = self._store.step(edge, step).parts
            segments = [held[part] for part in parts if part in held]
        for segment in segments:
            self._store.release(segment, Reader(host, share))

    def drained(self, worker: Worker, seconds: float) -> bool:
        """Whether everything this worker put has been read; waits for it."""

        def done() -> bool | None:
            mine = [s for s in self._store.unacknowledged() if self._is_mine(s, worker)]
            return None if mine else True

        return self._store.wait(done, seconds) is True

    def late_readers(self, worker: Worker, seconds: float) -> DeadlineExceeded:
        """Why a worker cannot leave: who has not read what it put."""
        late = "; ".join(explain_late(s) for s in self._store.unacknowledged() if self._is_mine(s, worker))
        return DeadlineExceeded(
            f"{worker} waited {seconds:.0f} s for its rows to be read: {late or 'broadcast chunks'}"
        )

    def missing(self, edge: str, step: int, parts: Sequence[int]) -> list[int]:
        """Which of this host's parts are not sealed."""
        with self._store.changed:
            return sorted(set(parts) - self._store.step(edge, step).sealed_parts)

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

        found = self._store.wait(ready, POLL_SECONDS)
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
            self._store.fail(edge, step, DeadlineExceeded(self._explain_late(edge, step, late, seconds)), share)
        except RLJobError as error:
            self._store.fail(edge, step, error, share)
        except Exception as error:  # a bug of ours: it must reach the workers, who would wait for ever
            self._store.fail(edge, step, RLJobError(f"edge {edge}, step {step}: {error!r}"), share)
            raise

    def _pull_share(self, route: RowsRoute, step: int, share: int, seconds: float) -> None:
        start = time.monotonic()
        by_host = self._sources(route, step, share, seconds)
        own = by_host.pop(self._here, [])
        left = seconds - (time.monotonic() - start)
        alias = self._whole_part(route, step, share, own, left) if not by_host else None
        readers = [Reader.rank(rank) for rank in route.readers(self._here, share)]
        me = Reader(str(self._here), share)
        if alias is not None:
            self._store.add_readers(alias, readers)
            self._finish(route.name, step, share, alias, {"producer_seconds": time.monotonic() - start})
            self._store.release(alias, me)
            return
        pull = Pull(
            item=Item(route.name, step, "share", share),
            store=self._store,
            memory=self._memory,
            executor=self._streams,
            open_stream=lambda host, parts, left: self._open(host, route.name, step, share, parts, left),
            attempt=self._peers.attempt,
            seconds=left,
        )
        segment = pull.run(list(by_host.items()), lambda left: self._own_rows(route.name, step, share, own, left))
        self._store.set_readers(segment, readers)
        waited = time.monotonic() - start - pull.timing.transfer_seconds
        timing = {"producer_seconds": waited, "transfer_seconds": pull.timing.transfer_seconds}
        self._metrics.got(route.name, timing, pull.timing.remote_bytes)
        self._finish(route.name, step, share, segment, timing)
        self.acknowledge(route.name, step, share, own, str(self._here))
        for host, parts in by_host.items():
            self._send_acknowledgement(host, route.name, step, share, parts)

    def _finish(self, edge: str, step: int, share: int, segment: Segment, timing: dict[str, float]) -> None:
        with self._store.change():
            self._timings[edge, step, share] = timing
            self._store.step(edge, step).shares[share] = segment
            for old in [key for key in self._timings if key[0] == edge and key[1] < step - 1]:
                del self._timings[old]

    def _sources(self, route: RowsRoute, step: int, share: int, seconds: float) -> dict[Host, list[int]]:
        """Parts to pull from, by host."""
        if route.needs_layouts:
            parts: Sequence[int] = self._wait_assignment(route, step, seconds).sources(share)
        else:
            parts = route.sources(share)
        by_host: dict[Host, list[int]] = {}
        for part in parts:
            by_host.setdefault(route.producer(part)[1], []).append(part)
        return by_host

    def _wait_assignment(self, route: RowsRoute, step: int, seconds: float) -> Assignment:
        key = (route.name, step)

        def ready() -> Assignment | RLJobError | None:
            return self._store.step(*key).failures.get(-1) or self._assignments.get(key)

        end = time.monotonic() + seconds
        hosts = itertools.cycle(_parts_by_host(route, range(route.num_parts)))
        while (found := self._store.wait(ready, min(PROBE_SECONDS, max(0.0, end - time.monotonic())))) is None:
            if time.monotonic() >= end:
                raise Late(list(_parts_by_host(route, range(route.num_parts)).items()))
            for host in itertools.islice(hosts, min(PROBED_HOSTS, route.num_producer_hosts())):
                if host != self._here:
                    self._peers.check(host)
        if isinstance(found, RLJobError):
            raise found
        return found

    def _whole_part(self, route: RowsRoute, step: int, share: int, own: list[int], seconds: float) -> Segment | None:
        """The part of this host that is exactly the share, if there is one: it is mapped as it is, without a copy."""
        if len(own) != 1:
            return None
        found = self._store.wait(lambda: self._sealed(route.name, step, own), seconds)
        if found is None:
            raise Late([(self._here, own)])
        segment, part = found[0]
        return segment if bool((self._shares_of(route.name, step, segment, part) == share).all()) else None

    def _own_rows(self, edge: str, step: int, share: int, own: list[int], seconds: float) -> list[Selection]:
        if not own:
            return []
        try:
            return self.rows(edge, step, share, own, seconds)
        except Pending:
            raise Late([(self._here, own)]) from None

    def _sealed(self, edge: str, step: int, parts: Sequence[int]) -> list[tuple[Segment, Views]] | None:
        route, held = self._routes[edge], self._store.step(edge, step).parts
        if any(part not in held for part in parts):
            return None
        if route.needs_layouts and (edge, step) not in self._assignments:
            return None
        found = []
        for part in parts:
            segment = held[part]
            assert segment.contents is not None
            found.append((segment, views(self._memory, segment.offset, segment.contents)))
        return found

    def _shares_of(self, edge: str, step: int, segment: Segment, part: Views) -> Int64:
        route = self._routes[edge]
        if route.needs_layouts:
            return self._assignments[edge, step].shares_of_part(segment.item.number)
        return route.assign(step, part.row_ids, part.group_ids, part.num_tokens)

    def _readers(self, route: RowsRoute, shares: Sequence[int]) -> list[Reader]:
        return [Reader(str(host), share) for share in shares for host in route.consumer_hosts(share)]

    # ---- talking to peers

    def _open(
        self, host: Host, edge: str, step: int, share: int, parts: Sequence[int], seconds: float
    ) -> flight.FlightStreamReader | None:
        return self._peers.open(host, ticket(edge, step, share, parts, POLL_SECONDS), seconds)

    def _send_acknowledgement(self, host: Host, edge: str, step: int, share: int, parts: list[int]) -> None:
        body = {"edge": edge, "step": step, "share": share, "parts": parts, "host": str(self._here)}
        self._in_background(edge, step, lambda: self._peers.act(host, "release", body))

    def _in_background(self, edge: str, step: int, call: Callable[[], Any]) -> None:
        def run() -> None:
            try:
                call()
            except RLJobError as error:
                self._store.fail(edge, step, error)

        self._streams.submit(run)

    # ---- layouts

    def layout_from_child(self, edge: str, step: int, position: int, layout: Layout) -> None:
        """A child in the tree has merged its subtree."""
        self._spread_up(edge, step, self._gathering(edge, step).add_child, position, layout)

    def layout_complete(self, edge: str, step: int, layout: Layout) -> None:
        """The merged layout has arrived from above, or we are the root: hand it on, then use it."""
        route, gathering = self._routes[edge], self._gathering(edge, step)
        hosts = route.participants()
        for child in gathering.children():
            body = encode_layout(edge, step, -1, layout)
            self._in_background(edge, step, lambda host=hosts[child], body=body: self._peers.act(host, "layout", body))
        shares = route.assign(step, layout.row_ids, layout.group_ids, layout.num_tokens)
        assignment = Assignment(layout, shares)
        with self._store.change():
            if (edge, step) in self._assignments:
                return
            self._assignments[edge, step] = assignment
            self._forget_before(edge, step)
            parts = dict(self._store.step(edge, step).parts)
        for part, segment in parts.items():
            fed = assignment.shares_fed_by(part, route.num_shares)
            self._store.set_readers(segment, self._readers(route, fed))

    def _spread_up(
        self, edge: str, step: int, add: Callable[[int, Layout], Layout | None], number: int, layout: Layout
    ) -> None:
        with self._lock:
            merged = add(number, layout)
        if merged is None:
            return
        position = self._gathering(edge, step).position
        parent = tree_parent(position, self._fan_out)
        if parent is None:
            self.layout_complete(edge, step, merged)
            return
        host, body = self._routes[edge].participants()[parent], encode_layout(edge, step, position, merged)
        self._in_background(edge, step, lambda: self._peers.act(host, "layout", body))

    def _gathering(self, edge: str, step: int) -> Gathering:
        with self._lock:
            if (edge, step) not in self._gatherings:
                route = self._routes[edge]
                hosts = route.participants()
                self._gatherings[edge, step] = Gathering(
                    hosts.index(self._here),
                    len(hosts),
                    route.num_producer_hosts(),
                    frozenset(_parts_by_host(route, range(route.num_parts)).get(self._here, [])),
                    self._fan_out,
                )
            return self._gatherings[edge, step]

    def _forget_before(self, edge: str, step: int) -> None:
        for kept in (self._assignments, self._gatherings):
            for old in [key for key in kept if key[0] == edge and key[1] < step - 2]:
                del kept[old]

    # ---- explanations

    def _explain_late(self, edge: str, step: int, late: Late, seconds: float) -> str:
        """Names the ranks whose rows are missing and what each last said it was doing."""
        route = self._routes[edge]
        reports: list[str] = []
        for host, parts in late.missing[:16]:
            answer = self._ask_missing(host, edge, step, parts)
            reports += [
                f"{route.producer(p)[0]} (host {host}): {answer.get(str(p), 'sealed')}"
                for p in parts
                if str(p) in answer
            ]
        shown = "; ".join(reports[:8]) + (f"; and {len(reports) - 8} more" if len(reports) > 8 else "")
        return (
            f"stage {route.stage} waited {seconds:.0f} s for rows of edge {edge}, step {step}. "
            f"Missing: {shown or 'their layouts, which are on the way'}"
        )

    def _ask_missing(self, host: Host, edge: str, step: int, parts: list[int]) -> dict[str, str]:
        body = {"edge": edge, "step": step, "parts": parts}
        if host == self._here:
            return self.describe_missing(edge, step, parts)
        try:
            answer: dict[str, str] = self._peers.act(host, "missing", body, seconds=5.0, window_seconds=2.0)
            return answer
        except RLJobError as error:
            return {str(part): str(error) for part in parts}

    def describe_missing(self, edge: str, step: int, parts: Sequence[int]) -> dict[str, str]:
        """For every unsealed part of this host, what its producer last posted."""
        route = self._routes[edge]
        return {str(p): self._last_words(route.producer(p)[0].rank) for p in self.missing(edge, step, parts)}

    # ---- space that can never come free

    def _refuse_hopeless(self, route: RowsRoute, item: Item, num_bytes: int) -> None:
        """Fail at once when the space is held for later stages of this very host, which run only after this put."""
        waiting = sum(s.num_bytes for s in self._store.segments() if self._is_for_later(route, item, s))
        needed = waiting + rounded(num_bytes)
        if needed > self._store.allocator.capacity:
            raise DeadlineExceeded(
                f"no room for {item}: {num_bytes:,} bytes, while {waiting:,} bytes wait in the same data buffer for stages "
                f"that run later on this host, so waiting cannot help. dataBuffer.memory is "
                f"{self._store.allocator.capacity:,} bytes; this step needs at least {needed:,}"
            )

    def _is_for_later(self, route: RowsRoute, item: Item, segment: Segment) -> bool:
        other = self._routes.get(segment.item.edge)
        if segment.item.what != "part" or segment.item.step < item.step or not isinstance(other, StageRoute):
            return False
        if not isinstance(route, StageRoute) or other.consumers.group != self._here.group:
            return False
        return other.consumer_level > route.producer_level

    def _is_mine(self, segment: Segment, worker: Worker) -> bool:
        route = self._routes.get(segment.item.edge)
        return route is not None and segment.item.what == "part" and route.producer(segment.item.number)[0] == worker


def _parts_by_host(route: RowsRoute, parts: Sequence[int]) -> dict[Host, list[int]]:
    by_host: dict[Host, list[int]] = {}
    for part in parts:
        by_host.setdefault(route.producer(part)[1], []).append(part)
    return by_host
