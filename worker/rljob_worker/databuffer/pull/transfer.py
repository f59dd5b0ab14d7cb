"""The rows of a share on their way from its hosts to its segment. No stream waits: what it asks for was offered."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from rljob_worker.databuffer.links.links import Links
from rljob_worker.databuffer.protocol.errors import Elsewhere
from rljob_worker.databuffer.protocol.peer_side import RowsTicket
from rljob_worker.databuffer.pull.edges import ConsumerShare, EdgeStep
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.rows.arrangement import Header, write_rows
from rljob_worker.databuffer.rows.landing import Landing
from rljob_worker.databuffer.rows.segment import Bytes, Views, views
from rljob_worker.databuffer.rows.stream import batch_bytes_for, stream_ranges, unpacked
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.work import Work
from rljob_worker.errors import PeerLost


@dataclass(frozen=True, slots=True)
class TransferTimeouts:
    """How long things may take, in seconds."""

    stream_seconds: float
    """One stream of rows from a peer that has them."""
    retry_seconds: float
    """A stream that breaks is asked for again for as long."""


class Transfer:
    """Brings rows to their places; `in_place` is called for every host whose rows are."""

    def __init__(
        self,
        here: Host,
        memory: Bytes,
        *,
        monitor: Monitor,
        links: Links,
        streams: Work,
        later: Callable[[float, Callable[[], None]], None],
        timeouts: TransferTimeouts,
        in_place: Callable[[EdgeStep, ConsumerShare, Host], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._here = here
        self._memory = memory
        self._monitor = monitor
        self._links = links
        self._streams = streams
        self._later = later
        self._timeouts = timeouts
        self._in_place = in_place
        self._clock = clock

    def begin(self, state: EdgeStep, share: ConsumerShare) -> None:
        """Everything known before the values arrive is written; then every host's rows come to their places."""
        assert share.arrangement is not None and share.segment is not None and share.segment.contents is not None
        share.target = views(self._memory, share.segment.offset, share.segment.contents)
        share.arrangement.write_index(share.target)
        with self._monitor.change():
            remote = [host for host in share.offers if host != self._here]
        brought = [host for host in remote if host in share.brought]
        ranges = {host: stream_ranges(_header(share, host)) for host in remote if host not in share.brought}
        batch_bytes = batch_bytes_for(sum(map(len, ranges.values())))
        for host in brought:
            self._place_brought(state, share, host)
        for host, of_host in ranges.items():
            left = set(of_host)
            for first, stop in of_host:
                self._fetch(_Fetch(state, share, host, first, stop, batch_bytes, left))
        if self._here in share.offers:
            self._place_own(state, share)

    def _place_own(self, state: EdgeStep, share: ConsumerShare) -> None:
        target, done, places = _target(share), 0, share.places[self._here]
        for part, rows in share.own:
            write_rows(target, places[done : done + len(rows)], part, rows)
            done += len(rows)
        self._in_place(state, share, self._here)

    def _fetch(self, fetch: _Fetch, since: float | None = None) -> None:
        def run() -> None:
            try:
                self._receive(fetch)
            except PeerLost as error:
                self._again(error, since, lambda first: self._fetch(fetch, first))
                return
            with self._monitor.look():
                fetch.left.discard((fetch.first, fetch.stop))
                is_last = not fetch.left
            if is_last:
                self._in_place(fetch.state, fetch.share, fetch.host)

        self._streams.submit(f"rows of {fetch.state.name} from host {fetch.host}", run)

    def _again(self, error: PeerLost, since: float | None, fetch: Callable[[float], None]) -> None:
        """A stream broke: once more a little later, until it has been failing for too long."""
        self._monitor.check()
        first = self._clock() if since is None else since
        # links know when looking for an address takes too long
        if self._clock() - first >= self._timeouts.retry_seconds and not isinstance(error, Elsewhere):
            raise error
        self._later(0.05, lambda: fetch(first))

    def _receive(self, fetch: _Fetch) -> None:
        """A range of a host's rows, in the order of its offer."""
        state, share, first, stop = fetch.state, fetch.share, fetch.first, fetch.stop
        ticket = RowsTicket(state.route.name, state.step, share.number, first, stop, fetch.batch_bytes)
        landing = _landing(state, share, fetch.host, first, stop)

        def take(record: pa.RecordBatch, checksum: bytes) -> None:
            landing.take(record, checksum)
            with self._monitor.look():
                share.remote_bytes += record.nbytes

        self._links.stream(fetch.host, ticket, self._timeouts.stream_seconds, take)
        landing.end()

    def _place_brought(self, state: EdgeStep, share: ConsumerShare, host: Host) -> None:
        """Rows that came with the offer."""
        landing = _landing(state, share, host)
        for record, checksum in unpacked(share.brought.pop(host), _header(share, host).kinds):
            landing.take(record, checksum)
            share.remote_bytes += record.nbytes
        landing.end()
        self._in_place(state, share, host)


@dataclass(frozen=True, slots=True)
class _Fetch:
    """A stream with rows [first, stop) of what a host offered."""

    state: EdgeStep
    share: ConsumerShare
    host: Host
    first: int
    stop: int
    batch_bytes: int
    left: set[tuple[int, int]]
    """Ranges of this host whose rows are not in place yet, of all its streams; under the lock."""


def _target(share: ConsumerShare) -> Views:
    assert share.target is not None, "it has been laid out"
    return share.target


def _header(share: ConsumerShare, host: Host) -> Header:
    header = share.offers[host]
    assert header is not None, "this host places its own rows from its parts"
    return header


def _landing(state: EdgeStep, share: ConsumerShare, host: Host, first: int = 0, stop: int | None = None) -> Landing:
    """For rows [first, stop) of a host, all by default, in the order of its offer."""
    what = f"{state.name} from host {host}"
    return Landing(_header(share, host), _target(share), share.places[host], what, first, stop)
