"""The rows of a share on their way from its hosts to its segment, each value straight to its place.

Rows that are ready while others are still computed come early, into room that anybody may take back: then they are
fetched once more. No stream waits, for what it asks has been offered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rljob_worker.databuffer.protocol.errors import Elsewhere
from rljob_worker.databuffer.protocol.peer_side import RowsTicket
from rljob_worker.databuffer.protocol.streams import Portion, Take
from rljob_worker.databuffer.pull.edges import Early, EdgeStep, Share
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.rows.arrangement import Header, arrange, place
from rljob_worker.databuffer.rows.landing import Landing
from rljob_worker.databuffer.rows.segment import Bytes, Views, views
from rljob_worker.databuffer.rows.stream import piece_bytes_for, unpacked
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.store.segments import Item, Segments
from rljob_worker.databuffer.work import Work
from rljob_worker.errors import PeerLost

Int64 = NDArray[np.int64]


class Streams(Protocol):
    """The part of the links that gives rows."""

    def stream(self, host: Host, ticket: RowsTicket, seconds: float, take: Take) -> None: ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take, in seconds."""

    stream_seconds: float
    """One stream of rows from a peer that has them."""
    retry_seconds: float
    """A stream that breaks is asked for again for as long."""


class Transfer:
    """Brings rows to their places; `in_place` hears of every host whose rows are."""

    def __init__(
        self,
        here: Host,
        segments: Segments,
        memory: Bytes,
        *,
        monitor: Monitor,
        links: Streams,
        streams: Work,
        later: Callable[[float, Callable[[], None]], None],
        patience: Patience,
        in_place: Callable[[EdgeStep, Share, Host], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._here = here
        self._segments = segments
        self._memory = memory
        self._monitor = monitor
        self._links = links
        self._streams = streams
        self._later = later
        self._patience = patience
        self._in_place = in_place
        self._clock = clock

    def begin(self, state: EdgeStep, share: Share) -> None:
        """Everything known before the values arrive is written; then every host's rows come to their places."""
        assert share.arrangement is not None and share.segment is not None and share.segment.contents is not None
        share.target = views(self._memory, share.segment.offset, share.segment.contents)
        share.arrangement.write_index(share.target)
        with self._monitor.change():
            share.is_laid_out = True
            remote = [host for host in share.offers if host != self._here]
            landed = [host for host in remote if host in share.early and share.early[host].has_landed]
            for host in landed:
                self._segments.keep(share.early[host].segment)
            absent = [host for host in remote if host not in share.early and host not in share.brought]
        for host in absent:
            self._fetch(state, share, host)
        for host in list(share.brought):
            self._place_brought(state, share, host)
        for host in landed:
            self._place_early(state, share, host)
        if self._here in share.offers:
            self._place_own(state, share)

    def _place_own(self, state: EdgeStep, share: Share) -> None:
        target, done, places = _target(share), 0, share.places[self._here]
        for part, rows in share.own:
            place(target, places[done : done + len(rows)], part, rows)
            done += len(rows)
        self._in_place(state, share, self._here)

    def _fetch(self, state: EdgeStep, share: Share, host: Host, since: float | None = None) -> None:
        what = f"rows of {state.name} from host {host}"

        def run() -> None:
            try:
                self._receive(state, share, host, _target(share), share.places[host])
            except PeerLost as error:
                self._again(error, since, lambda first: self._fetch(state, share, host, first))
                return
            self._in_place(state, share, host)

        self._streams.submit(what, run)

    def _again(self, error: PeerLost, since: float | None, fetch: Callable[[float], None]) -> None:
        """A stream broke: once more a little later, until it has been failing for too long."""
        self._monitor.check()
        first = self._clock() if since is None else since
        # links know when looking for an address takes too long
        if self._clock() - first >= self._patience.retry_seconds and not isinstance(error, Elsewhere):
            raise error
        self._later(0.05, lambda: fetch(first))

    def _receive(self, state: EdgeStep, share: Share, host: Host, target: Views, places: Int64) -> None:
        """All rows of a host, in the order of its offer, to rows `places` of `target`."""
        piece_bytes = piece_bytes_for(len(share.offers))
        ticket = RowsTicket(state.route.name, state.step, share.number, piece_bytes)
        landing = _landing(state, share, host, target, places)

        def take(portion: Portion) -> None:
            landing.take(portion)
            share.remote_bytes += portion.num_bytes

        self._links.stream(host, ticket, self._patience.stream_seconds, take)
        landing.end()

    def _place_brought(self, state: EdgeStep, share: Share, host: Host) -> None:
        """Rows that came with the offer."""
        landing = _landing(state, share, host, _target(share), share.places[host])
        for portion in unpacked(share.brought.pop(host)):
            landing.take(portion)
            share.remote_bytes += portion.num_bytes
        landing.end()
        self._in_place(state, share, host)

    # ---- early rows

    def begin_early(self, state: EdgeStep, share: Share) -> None:
        """Rows that are there while others are still computed come into spare room; under the lock.

        Where layouts are exchanged all rows are there before any is offered: nothing would be gained.
        """
        if state.route.needs_layouts:
            return
        while share.fetchable:
            host = share.fetchable[0]
            header = share.offers[host]
            assert header is not None, "this host's own rows need not come"
            contents = arrange([header], state.route.name).contents
            item = Item(state.route.name, state.step, "early rows of share", share.number)
            segment = self._segments.try_reserve_early(item, contents.num_bytes)
            if segment is None:
                return
            share.fetchable.popleft()
            segment.contents = contents
            share.early[host] = Early(segment)
            self._stream_early(state, share, host, header)

    def _stream_early(self, state: EdgeStep, share: Share, host: Host, header: Header) -> None:
        segment = share.early[host].segment
        what = f"early rows of {state.name} from host {host}"

        def run() -> None:
            assert segment.contents is not None
            target = views(self._memory, segment.offset, segment.contents)
            arrangement = arrange([header], state.route.name)
            arrangement.write_index(target)
            try:
                self._receive(state, share, host, target, arrangement.targets[0])
            except PeerLost:
                self._give_up_early(state, share, host)
                return
            self._early_landed(state, share, host)

        self._streams.submit(what, run)

    def _early_landed(self, state: EdgeStep, share: Share, host: Host) -> None:
        with self._monitor.change():
            early = share.early[host]
            early.has_landed = True
            is_due = share.is_laid_out
            if not is_due:
                self._segments.may_take_back(early.segment, lambda: self._taken_back(share, host))
        if is_due:
            self._place_early(state, share, host)

    def _taken_back(self, share: Share, host: Host) -> None:
        """Somebody needed the room: these rows are fetched again, once there is a place for them. Under the lock."""
        del share.early[host]

    def _give_up_early(self, state: EdgeStep, share: Share, host: Host) -> None:
        """The stream broke: as if it had never been tried."""
        with self._monitor.change():
            self._segments.drop(share.early.pop(host).segment)
            is_due = share.is_laid_out
        if is_due:
            self._fetch(state, share, host)

    def _place_early(self, state: EdgeStep, share: Share, host: Host) -> None:
        segment, header = share.early[host].segment, share.offers[host]
        assert segment.contents is not None and header is not None
        landed = views(self._memory, segment.offset, segment.contents)
        # early rows lie in row_id order, the offer tells them in the order of its parts
        order = arrange([header], state.route.name).targets[0]
        place(_target(share), share.places[host], landed, order)
        with self._monitor.change():
            self._segments.drop(segment)
        self._in_place(state, share, host)


def _target(share: Share) -> Views:
    assert share.target is not None, "it has been laid out"
    return share.target


def _landing(state: EdgeStep, share: Share, host: Host, target: Views, places: Int64) -> Landing:
    """For the rows of a host, in the order of its offer, to rows `places` of `target`."""
    header = share.offers[host]
    assert header is not None, "this host places its own rows from its parts"
    return Landing(header, target, places, f"{state.name} from host {host}")
