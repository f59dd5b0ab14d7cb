"""Spreads layouts between hosts: up to the root as producers seal, down when complete. One host's end of it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from rljob_worker.databuffer.hosts import FAN_OUT, Host, tree_parent
from rljob_worker.databuffer.layouts import Assignment, Gathering, Layout
from rljob_worker.databuffer.peers import Peers
from rljob_worker.databuffer.pull import Late
from rljob_worker.databuffer.routing import RowsRoute, sources_by_host
from rljob_worker.databuffer.rows.segment import Views
from rljob_worker.databuffer.store import Reader, Store
from rljob_worker.databuffer.wire import encode_layout
from rljob_worker.errors import RLJobError

PROBE_SECONDS = 2.0
"""Nobody calls a host whose layout travels up a tree: whoever waits looks from time to time whether it lives."""
PROBED_HOSTS = 16
REMEMBERED_STEPS = 2

Background = Callable[[str, int, Callable[[], Any]], None]
"""Runs a call to a peer aside; its failure fails the step of the edge."""


class LayoutTree:
    """Complete layouts of the edges that need them, and the share of every row."""

    def __init__(
        self,
        here: Host,
        routes: dict[str, RowsRoute],
        store: Store,
        peers: Peers,
        background: Background,
        fan_out: int = FAN_OUT,
    ) -> None:
        self._here = here
        self._routes = routes
        self._store = store
        self._peers = peers
        self._background = background
        self._fan_out = fan_out
        self._lock = threading.Lock()
        self._gatherings: dict[tuple[str, int], Gathering] = {}
        self._assignments: dict[tuple[str, int], Assignment] = {}
        self._parts_by_host: dict[str, dict[Host, list[int]]] = {}

    def assignment(self, edge: str, step: int) -> Assignment | None:
        return self._assignments.get((edge, step))

    def part_sealed(self, edge: str, step: int, part: int, rows: Views) -> None:
        """A producer of this host is done."""
        layout = Layout.of_part(part, rows.index)
        self._spread_up(edge, step, lambda gathering: gathering.add_part(part, layout))

    def from_child(self, edge: str, step: int, position: int, layout: Layout) -> None:
        """A child in the tree has merged its subtree."""
        self._spread_up(edge, step, lambda gathering: gathering.add_child(position, layout))

    def complete(self, edge: str, step: int, layout: Layout) -> None:
        """The merged layout has come from above, or we are the root: hand it on, then use it."""
        route = self._routes[edge]
        self._spread_down(edge, step, layout)
        index = layout.index
        shares = route.assign(step, index.row_ids, index.group_ids, index.num_tokens)
        assignment = Assignment(layout, shares)
        with self._store.change():
            if (edge, step) in self._assignments:
                return  # the same message again
            self._assignments[edge, step] = assignment
            self._forget_before(edge, step - REMEMBERED_STEPS)
            # under the lock: who sees the assignment may acknowledge at once, and needs the readers to be known
            for part, segment in dict(self._store.step(edge, step).parts).items():
                fed = assignment.shares_fed_by(part, route.num_shares)
                self._store.set_readers(segment, share_readers(route, fed))

    def wait(self, route: RowsRoute, step: int, seconds: float) -> Assignment:
        """The assignment of a step. Raises Late, or PeerLost for a producer's host that has died meanwhile."""

        def ready() -> Assignment | RLJobError | None:
            return self._store.step(route.name, step).failures.get(-1) or self.assignment(route.name, step)

        end = time.monotonic() + seconds
        producers = self._producers(route.name)
        probed = itertools.cycle(producers)
        found: Assignment | RLJobError | None
        while (found := self._store.wait(ready, min(PROBE_SECONDS, max(0.0, end - time.monotonic())))) is None:
            if time.monotonic() >= end:
                raise Late(list(producers.items()))
            for host in itertools.islice(probed, min(PROBED_HOSTS, len(producers))):
                if host != self._here:
                    self._peers.check(host)
        if isinstance(found, RLJobError):
            raise found
        return found

    def _producers(self, edge: str) -> dict[Host, list[int]]:
        """All parts by host; worked out once, there are as many as producing workers."""
        if edge not in self._parts_by_host:
            route = self._routes[edge]
            self._parts_by_host[edge] = sources_by_host(route, range(route.num_parts))
        return self._parts_by_host[edge]

    def _spread_up(self, edge: str, step: int, add: Callable[[Gathering], Layout | None]) -> None:
        with self._lock:
            gathering = self._gathering(edge, step)
            merged = add(gathering)
        if merged is None:
            return
        parent = tree_parent(gathering.position, self._fan_out)
        if parent is None:
            self.complete(edge, step, merged)
            return
        host = self._routes[edge].participants[parent]
        self._send(host, edge, step, gathering.position, merged)

    def _spread_down(self, edge: str, step: int, layout: Layout) -> None:
        with self._lock:
            children = self._gathering(edge, step).children()
        for child in children:
            self._send(self._routes[edge].participants[child], edge, step, -1, layout)

    def _send(self, host: Host, edge: str, step: int, position: int, layout: Layout) -> None:
        body = encode_layout(edge, step, position, layout)
        self._background(edge, step, lambda: self._peers.act(host, "layout", body))

    def _gathering(self, edge: str, step: int) -> Gathering:
        if (edge, step) not in self._gatherings:
            route = self._routes[edge]
            self._gatherings[edge, step] = Gathering(
                route.participants.index(self._here),
                len(route.participants),
                route.num_producer_hosts,
                frozenset(self._producers(edge).get(self._here, [])),
                self._fan_out,
            )
        return self._gatherings[edge, step]

    def _forget_before(self, edge: str, step: int) -> None:
        for old in [key for key in self._assignments if key[0] == edge and key[1] < step]:
            del self._assignments[old]
        with self._lock:
            for old in [key for key in self._gatherings if key[0] == edge and key[1] < step]:
                del self._gatherings[old]


def share_readers(route: RowsRoute, shares: list[int]) -> list[Reader]:
    """The data buffers that fetch some shares."""
    return [Reader(str(host), share) for share in shares for host in route.consumer_hosts(share)]
