"""The shares of the workers of this host: from the first offer to the last reader.

    OFFERS ──all are there──▶ LAY_OUT ──worked out──▶ ROOM ──found──▶ DATA ──all in place──▶ READY ──read──▶ OVER

Nothing here waits. An event moves a share on under the lock, and work that takes time (`Work`) ends in another event.

Where producers may be ahead (`rollout.maxStaleness`) rows of the steps after the one that a worker asks for are fetched
as soon as they are offered, so that they are here when their step begins. They never take the room that a step needs: a
share that is fetched ahead leaves free what the largest step takes, or goes back to waiting for its worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rljob_worker.databuffer.links.links import Links
from rljob_worker.databuffer.protocol.errors import OutOfOrder, require
from rljob_worker.databuffer.protocol.peer_side import RowsTaken
from rljob_worker.databuffer.pull.edges import ConsumerShare, Edges, EdgeStep, SharePhase
from rljob_worker.databuffer.pull.producing import Producing
from rljob_worker.databuffer.pull.transfer import Transfer, TransferTimeouts
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.rows.arrangement import Arrangement, Header, arrange
from rljob_worker.databuffer.rows.segment import Bytes
from rljob_worker.databuffer.rows.stream import header_of
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.store.segments import Item, Segment, SegmentReader, Segments
from rljob_worker.databuffer.work import Work

SMALL_BYTES = 1 << 20
"""A share of at most this many bytes is laid out in the thread that brings the last offer, or asks for it last."""


class Consuming:
    """Shares and their segments."""

    def __init__(
        self,
        here: Host,
        segments: Segments,
        memory: Bytes,
        *,
        monitor: Monitor,
        links: Links,
        work: Work,
        streams: Work,
        later: Callable[[float, Callable[[], None]], None],
        timeouts: TransferTimeouts,
        received: Callable[[str, ConsumerShare], None],
        edges: Edges,
        ahead: int = 0,
        step_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """ahead: steps whose rows are fetched before a worker asks for them. step_bytes: what they leave free, the room
        that the rows of the largest step take on this host."""
        self._here = here
        self._segments = segments
        self._monitor = monitor
        self._links = links
        self._work = work
        self._received = received
        self._edges, self._ahead, self._step_bytes = edges, ahead, step_bytes
        self._clock = clock
        self._transfer = Transfer(
            here,
            memory,
            monitor=monitor,
            links=links,
            streams=streams,
            later=later,
            timeouts=timeouts,
            in_place=self._in_place,
            clock=clock,
        )
        self.own: Producing

    # ---- events

    def want(self, state: EdgeStep, number: int) -> ConsumerShare:
        """A worker asks for a share, perhaps not for the first time."""
        with self._monitor.change():
            share = state.share(number)
            due = [(state, share)] if self._want(state, share) else []
            if not share.is_asked:
                share.wanted_at = self._clock()
                for step in range(state.step + 1, state.step + 1 + self._ahead):
                    coming = self._edges.at(state.route.name, step)
                    if self._want(coming, coming.share(number)):
                        due.append((coming, coming.share(number)))
        for one in due:
            self._begin(*one)
        return share

    def _want(self, state: EdgeStep, share: ConsumerShare) -> bool:
        """Fetch it once it can be; whether that is now. Under the lock."""
        share.is_wanted = True
        return self._is_due(state, share)

    def offered(self, state: EdgeStep, number: int, host: Host, header: Header | None, rows: bytes = b"") -> None:
        """A host has rows of a share, and has sent them along where they are few.

        This one says so without a header, for its parts can be looked at.
        """
        route, what = state.route, f"share {number} of {state.name}"
        require(number in route.shares_on(self._here), f"nobody of host {self._here} reads share {number}")
        require(bool(route.parts_on(host)), f"nobody of host {host} puts rows on edge {route.name}")
        if header is not None:
            _check_offer(state, number, host, header)
        with self._monitor.change():
            share = state.share(number)
            require(host not in share.offers and share.phase is SharePhase.OFFERS, f"{host} offered {what} twice")
            share.offers[host], share.offered_at = header, self._clock()
            if rows:
                share.brought[host] = rows
            is_due = self._is_due(state, share)
        if is_due:
            self._begin(state, share)

    def assigned(self, state: EdgeStep) -> None:
        """It is known which hosts will offer."""
        with self._monitor.change():
            due = [share for share in state.shares.values() if self._is_due(state, share)]
        for share in due:
            self._begin(state, share)

    def readable(self, state: EdgeStep, share: ConsumerShare, rank: int) -> Segment | None:
        """The share's segment once it can be read; under the lock. OutOfOrder for a rank that has released it."""
        if share.phase not in (SharePhase.READY, SharePhase.OVER):
            return None
        readers = share.segment.readers if share.segment is not None else None
        if not readers or SegmentReader.rank(rank) not in readers:
            raise OutOfOrder(f"rank {rank} asks for share {share.number} of {state.name} again, which it has released")
        return share.segment

    def release(self, state: EdgeStep, number: int, rank: int) -> None:
        """A worker does not look at its share any more."""
        with self._monitor.change():
            share = state.share(number)
            assert share.segment is not None, f"share {number} of {state.name} was never read"
            self._segments.release(share.segment, SegmentReader.rank(rank))
            if not any(reader.is_rank for reader in share.segment.readers or ()):
                share.phase = SharePhase.OVER
            self.own.forget_read(state)

    # ---- offers

    def _is_due(self, state: EdgeStep, share: ConsumerShare) -> bool:
        """Whether all offers have come just now; under the lock."""
        expected = state.expected(share.number)
        if share.phase is not SharePhase.OFFERS or not share.is_wanted or expected is None:
            return False
        if not expected.keys() <= share.offers.keys():
            return False
        strays = sorted(map(str, share.offers.keys() - expected.keys()))
        require(not strays, f"{strays} offered rows of share {share.number} of {state.name}, and have none")
        share.phase = SharePhase.LAY_OUT
        return True

    # ---- lay-out

    def _begin(self, state: EdgeStep, share: ConsumerShare) -> None:
        offered = sum(header.num_bytes for header in share.offers.values() if header is not None)
        with self._monitor.look():
            own = sum(part.segment.num_bytes for part in state.feeding(share.number))
            # what goes to disk is not small work, however little it is
            most = min(SMALL_BYTES, self._segments.memory.largest_free)
        is_small = offered + own <= most
        self._work.do(f"lay-out of {state.name}", lambda: self._lay_out(state, share), is_small=is_small)

    def _lay_out(self, state: EdgeStep, share: ConsumerShare) -> None:
        if list(share.offers) == [self._here] and self._map_whole(state, share):
            return
        hosts = sorted(share.offers)
        headers = {host: share.offers[host] or self._own_header(state, share) for host in hosts}
        _check_layout(state, share.number, headers)
        arrangement = arrange(list(headers.values()), state.route.name)
        with self._monitor.change():
            share.arrangement = arrangement
            share.places = dict(zip(hosts, arrangement.targets, strict=True))
            share.phase = SharePhase.ROOM
            if not share.is_asked and not self._has_room_ahead(arrangement):
                return self._leave_for_later(share)
            own = [part.segment for part in state.feeding(share.number)]
            item, num_bytes = _item(state, share), arrangement.contents.num_bytes
            self._segments.refuse_hopeless(item, num_bytes, own, "hold rows of it and are kept until it is there")
            has_room = self._take_room(state, share, arrangement)
            if not has_room:
                self._segments.when_room(lambda: self._begin_later(state, share, arrangement))
        if has_room:
            self._transfer.begin(state, share)

    def _has_room_ahead(self, arrangement: Arrangement) -> bool:
        """Under the lock."""
        return self._segments.memory.largest_free - arrangement.contents.num_bytes >= self._step_bytes

    def _leave_for_later(self, share: ConsumerShare) -> None:
        """As if nobody had wanted it, until a worker asks. Under the lock."""
        share.phase, share.is_wanted = SharePhase.OFFERS, False
        share.arrangement, share.places, share.own = None, {}, []

    def _own_header(self, state: EdgeStep, share: ConsumerShare) -> Header:
        share.own = self.own.selections(state.route.name, state.step, share.number)
        return header_of(share.own, state.route.name)

    def _begin_later(self, state: EdgeStep, share: ConsumerShare, arrangement: Arrangement) -> bool:
        """Under the lock, which the thread that freed memory holds."""
        has_room = self._take_room(state, share, arrangement)
        if has_room:
            self._work.submit(f"index of {state.name}", lambda: self._transfer.begin(state, share))
        return has_room

    def _map_whole(self, state: EdgeStep, share: ConsumerShare) -> bool:
        """A part of this host that is exactly the share is mapped as it is, without a copy."""
        with self._monitor.change():
            parts = state.feeding(share.number)
            if len(parts) != 1 or not parts[0].is_wholly(share.number):
                return False
            share.segment = parts[0].segment
            readers = state.route.readers(self._here, share.number)
            self._segments.add_readers(share.segment, map(SegmentReader.rank, readers))
            self._become_ready(state, share)
            return True

    def _take_room(self, state: EdgeStep, share: ConsumerShare, arrangement: Arrangement) -> bool:
        """Under the lock."""
        segment = self._segments.try_reserve(_item(state, share), arrangement.contents.num_bytes)
        if segment is None:
            return False
        segment.contents, share.segment = arrangement.contents, segment
        share.phase, share.left = SharePhase.DATA, set(share.offers)
        return True

    # ---- ready

    def _in_place(self, state: EdgeStep, share: ConsumerShare, host: Host) -> None:
        with self._monitor.change():
            share.left.discard(host)
            if not share.left:
                assert share.segment is not None
                self._segments.set_readers(
                    share.segment, map(SegmentReader.rank, state.route.readers(self._here, share.number))
                )
                self._become_ready(state, share)

    def _become_ready(self, state: EdgeStep, share: ConsumerShare) -> None:
        """Under the lock: its workers may read, its producers need not keep it."""
        share.phase, share.ready_at = SharePhase.READY, self._clock()
        for host in share.offers:
            if host == self._here:
                self.own.release(state, share.number, host)
            else:
                self._links.send(host, RowsTaken(state.route.name, state.step, (share.number,)))
        share.offers = {}
        share.arrangement, share.target = None, None
        share.places, share.brought, share.own = {}, {}, []
        self._received(state.route.name, share)


def _check_offer(state: EdgeStep, share: int, host: Host, header: Header) -> None:
    """Raises Malformed for columns that the edge does not have and, by ordinal, for rows of another step, share or
    host."""
    columns, edge = state.route.columns, state.route.name
    require(header.kinds.keys() == set(columns), f"columns {', '.join(header.kinds)}; edge {edge} has {columns}")
    if not state.route.needs_layouts:
        is_right = state.route.is_of_step(state.step, header.index) and state.route.may_send(host, share, header.index)
        require(is_right, f"{host} offered rows that are not of step {state.step}, share {share} and this host")


def _check_layout(state: EdgeStep, share: int, headers: Mapping[Host, Header]) -> None:
    """Raises Malformed for rows other than those in the layout."""
    if state.assignment is None:
        return
    layout, expected = state.assignment.of_share(share), state.expected(share) or {}
    for host, header in headers.items():
        index = layout.index.take(np.flatnonzero(np.isin(layout.parts, expected[host])))
        is_right = np.array_equal(list(index.columns().values()), list(header.index.columns().values()))
        require(is_right, f"{host} offered other rows for share {share} of {state.name} than its layout says")


def _item(state: EdgeStep, share: ConsumerShare) -> Item:
    return Item(state.route.name, state.step, "share", share.number)


def why_not_ready(
    state: EdgeStep, share: ConsumerShare, segments: Segments, seconds: float, missing: Sequence[str]
) -> str:
    """What a share waits for, by its phase; `missing` are the words of those who have not offered. Under the lock."""
    head = f"stage {state.route.consumer_stage.name} waited {seconds:.1f} s for rows of {state.name}. "
    if share.phase in (SharePhase.OFFERS, SharePhase.LAY_OUT):
        return head + ("Missing: " + "; ".join(missing) if missing else "Everything has been offered")
    if share.phase is SharePhase.ROOM:
        assert share.arrangement is not None
        return head + segments.explain_full(_item(state, share), share.arrangement.contents.num_bytes, seconds)
    hosts = ", ".join(sorted(map(str, share.left)))
    return f"{head}On the way: rows of host {hosts}; {share.remote_bytes:,} bytes have come so far"
