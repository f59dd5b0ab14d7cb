"""The shares of the workers of this host: from the first offer to the last reader.

    OFFERS ──all are there──▶ LAY_OUT ──worked out──▶ ROOM ──found──▶ DATA ──all in place──▶ READY ──read──▶ OVER
       └── early rows: fetched into room that anybody may take back, copied to their place in DATA

Nothing here waits. An event moves a share on under the lock, and work that takes time (`Work`) ends in another event.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rljob_worker.databuffer.protocol.errors import OutOfOrder
from rljob_worker.databuffer.protocol.peer_side import PeerMessage, RowsOffered, RowsTaken, RowsTicket
from rljob_worker.databuffer.pull.edges import Early, EdgeStep, Phase, Share
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.rows.arrangement import Arrangement, Header, arrange, place
from rljob_worker.databuffer.rows.schema import Kind, from_arrow
from rljob_worker.databuffer.rows.segment import Bytes, Views, views
from rljob_worker.databuffer.rows.stream import Selection, chunk_bytes_for, header_of
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.store.segments import Item, Reader, Segment, Segments
from rljob_worker.databuffer.work import Work
from rljob_worker.errors import PeerLost

Int64 = NDArray[np.int64]


class Links(Protocol):
    """The part of the links that rows use."""

    def send(self, host: Host, message: PeerMessage) -> None: ...

    def stream(self, host: Host, ticket: RowsTicket, seconds: float) -> Any: ...


class Here(Protocol):
    """The part of `Producing` that its own host consumes from."""

    def selections(self, edge: str, step: int, share: int) -> list[Selection]: ...

    def release(self, state: EdgeStep, share: int, host: Host) -> None: ...

    def forget_read(self, state: EdgeStep) -> None: ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take, in seconds."""

    stream_seconds: float
    """One stream of rows from a peer that has them."""
    retry_seconds: float
    """A stream that breaks is asked for again for as long."""


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
        patience: Patience,
        received: Callable[[str, Share], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._here = here
        self._segments = segments
        self._memory = memory
        self._monitor = monitor
        self._links = links
        self._work = work
        self._streams = streams
        self._later = later
        self._patience = patience
        self._received = received
        self._clock = clock
        self.own: Here

    # ---- events

    def want(self, state: EdgeStep, number: int) -> Share:
        """A worker asks for a share, perhaps not for the first time; under the lock."""
        share = state.share(number)
        if not share.is_wanted:
            share.is_wanted, share.wanted_at = True, self._clock()
            self._look(state, share)
        return share

    def offered(self, state: EdgeStep, number: int, host: Host, header: Header | None) -> None:
        """A host has rows of a share; this one says so without a header, for its parts can be looked at."""
        with self._monitor.change():
            route = state.route
            assert number in route.shares_on(self._here), f"nobody of host {self._here} reads share {number}"
            assert route.parts_on(host), f"nobody of host {host} puts rows on edge {route.name}"
            share = state.share(number)
            assert host not in share.offers, f"{host} offered share {number} of {state.name} twice"
            share.offers[host], share.offered_at = header, self._clock()
            self._look(state, share)

    def assigned(self, state: EdgeStep) -> None:
        """It is known which hosts will offer."""
        with self._monitor.change():
            for share in state.shares.values():
                self._look(state, share)

    def readable(self, state: EdgeStep, share: Share, rank: int) -> Segment | None:
        """The share's segment once it can be read; under the lock. OutOfOrder for a rank that has released it."""
        if share.phase not in (Phase.READY, Phase.OVER):
            return None
        readers = share.segment.readers if share.segment is not None else None
        if not readers or Reader.rank(rank) not in readers:
            raise OutOfOrder(f"rank {rank} asks for share {share.number} of {state.name} again, which it has released")
        return share.segment

    def release(self, state: EdgeStep, number: int, rank: int) -> None:
        """A worker does not look at its share any more."""
        with self._monitor.change():
            share = state.share(number)
            assert share.segment is not None, f"share {number} of {state.name} was never read"
            self._segments.release(share.segment, Reader.rank(rank))
            if not any(reader.is_rank for reader in share.segment.readers or ()):
                share.phase = Phase.OVER
            self.own.forget_read(state)

    # ---- offers

    def _look(self, state: EdgeStep, share: Share) -> None:
        """Go on if all offers are there; under the lock."""
        expected = state.expected(share.number)
        if share.phase is not Phase.OFFERS or not share.is_wanted or expected is None:
            return
        if not expected.keys() <= share.offers.keys():
            self._fetch_early(state, share)
            return
        strays = sorted(map(str, share.offers.keys() - expected.keys()))
        assert not strays, f"{strays} offered rows of share {share.number} of {state.name}, and have none"
        share.phase = Phase.LAY_OUT
        self._work.submit(f"lay-out of {state.name}", lambda: self._lay_out(state, share))

    # ---- lay-out

    def _lay_out(self, state: EdgeStep, share: Share) -> None:
        if list(share.offers) == [self._here] and self._map_whole(state, share):
            return
        hosts = sorted(share.offers)
        arrangement = arrange(
            [share.offers[host] or self._own_header(state, share) for host in hosts], state.route.name
        )
        with self._monitor.change():
            share.arrangement = arrangement
            share.places = dict(zip(hosts, arrangement.targets, strict=True))
            share.phase = Phase.ROOM
            has_room = self._take_room(state, share, arrangement)
            if not has_room:
                self._segments.when_room(lambda: self._begin_later(state, share, arrangement))
        if has_room:
            self._begin(state, share)

    def _own_header(self, state: EdgeStep, share: Share) -> Header:
        share.own = self.own.selections(state.route.name, state.step, share.number)
        return header_of(share.own)

    def _begin_later(self, state: EdgeStep, share: Share, arrangement: Arrangement) -> bool:
        """Under the lock of whoever gave room back."""
        has_room = self._take_room(state, share, arrangement)
        if has_room:
            self._work.submit(f"index of {state.name}", lambda: self._begin(state, share))
        return has_room

    def _map_whole(self, state: EdgeStep, share: Share) -> bool:
        """A part of this host that is exactly the share is mapped as it is, without a copy."""
        with self._monitor.change():
            parts = state.feeding(share.number)
            if len(parts) != 1 or not parts[0].is_wholly(share.number):
                return False
            share.segment = parts[0].segment
            readers = state.route.readers(self._here, share.number)
            self._segments.add_readers(share.segment, map(Reader.rank, readers))
            self._become_ready(state, share)
            return True

    def _take_room(self, state: EdgeStep, share: Share, arrangement: Arrangement) -> bool:
        """Under the lock."""
        item = Item(state.route.name, state.step, "share", share.number)
        segment = self._segments.try_reserve(item, arrangement.contents.num_bytes)
        if segment is None:
            return False
        segment.contents, share.segment = arrangement.contents, segment
        share.phase, share.left = Phase.DATA, set(share.offers)
        return True

    # ---- data

    def _begin(self, state: EdgeStep, share: Share) -> None:
        """Everything known before the values arrive is written; then every host's rows come to their places."""
        assert share.arrangement is not None
        share.arrangement.write_index(self._target(share))
        with self._monitor.change():
            share.is_laid_out = True
            remote = [host for host in share.offers if host != self._here]
            landed = [host for host in remote if host in share.early and share.early[host].has_landed]
            for host in landed:
                self._segments.keep(share.early[host].segment)
            absent = [host for host in remote if host not in share.early]
        for host in absent:
            self._fetch(state, share, host)
        for host in landed:
            self._place_early(state, share, host)
        if self._here in share.offers:
            self._place_own(state, share)

    def _target(self, share: Share) -> Views:
        assert share.segment is not None and share.segment.contents is not None
        return views(self._memory, share.segment.offset, share.segment.contents)

    def _place_own(self, state: EdgeStep, share: Share) -> None:
        target, done, places = self._target(share), 0, share.places[self._here]
        for part, rows in share.own:
            place(target, places[done : done + len(rows)], part, rows)
            done += len(rows)
        self._in_place(state, share, self._here)

    def _fetch(self, state: EdgeStep, share: Share, host: Host, since: float | None = None) -> None:
        what = f"rows of {state.name} from host {host}"

        def run() -> None:
            try:
                self._receive(state, share, host, self._target(share), share.places[host])
            except PeerLost as error:
                self._again(error, since, lambda first: self._fetch(state, share, host, first))
                return
            self._in_place(state, share, host)

        self._streams.submit(what, run)

    def _again(self, error: PeerLost, since: float | None, fetch: Callable[[float], None]) -> None:
        """A stream broke: once more a little later, until it has been failing for too long."""
        self._monitor.check()
        first = self._clock() if since is None else since
        if self._clock() - first >= self._patience.retry_seconds:
            raise error
        self._later(0.05, lambda: fetch(first))

    def _receive(self, state: EdgeStep, share: Share, host: Host, target: Views, places: Int64) -> None:
        """All rows of a host, in the order of its offer, to rows `places` of `target`."""
        chunk_bytes = chunk_bytes_for(len(share.offers))
        ticket = RowsTicket(state.route.name, state.step, share.number, chunk_bytes)
        done = 0
        for batch, num_bytes in _batches(self._links.stream(host, ticket, self._patience.stream_seconds)):
            rows = batch.row_ids
            if done + len(rows) > len(places):
                raise PeerLost(f"host {host} sent more than the {len(places)} rows that it offered of {state.name}")
            place(target, places[done : done + len(rows)], batch, np.arange(len(rows)))
            done += len(rows)
            share.remote_bytes += num_bytes
        if done != len(places):
            raise PeerLost(f"the stream of {state.name} from host {host} ended after {done} of {len(places)} rows")

    def _in_place(self, state: EdgeStep, share: Share, host: Host) -> None:
        with self._monitor.change():
            share.left.discard(host)
            if not share.left:
                assert share.segment is not None
                self._segments.set_readers(
                    share.segment, map(Reader.rank, state.route.readers(self._here, share.number))
                )
                self._become_ready(state, share)

    def _become_ready(self, state: EdgeStep, share: Share) -> None:
        """Under the lock: its workers may read, its producers need not keep it."""
        share.phase, share.ready_at = Phase.READY, self._clock()
        for host in share.offers:
            if host == self._here:
                self.own.release(state, share.number, host)
            else:
                self._links.send(host, RowsTaken(state.route.name, state.step, (share.number,)))
        share.offers = {}
        share.arrangement, share.places, share.early, share.own = None, {}, {}, []
        self._received(state.route.name, share)

    # ---- early rows

    def _fetch_early(self, state: EdgeStep, share: Share) -> None:
        """Rows that are there while others are still computed come into spare room; under the lock.

        Where layouts are exchanged all rows are there before any is offered: nothing would be gained.
        """
        if state.route.needs_layouts:
            return
        for host, header in share.offers.items():
            if header is None or host in share.early:
                continue
            contents = arrange([header], state.route.name).contents
            item = Item(state.route.name, state.step, "early rows of share", share.number)
            segment = self._segments.try_reserve_early(item, contents.num_bytes)
            if segment is None:
                return
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
        place(self._target(share), share.places[host], landed, order)
        with self._monitor.change():
            self._segments.drop(segment)
        self._in_place(state, share, host)


def _batches(reader: Any) -> Iterator[tuple[Any, int]]:
    """The batches of a stream and their bytes. Errors of the stream are the links' to name."""
    for record in reader:
        yield from_arrow(record), record.nbytes


def header_from(message: RowsOffered) -> Header:
    """What was offered. Raises BadData or PeerLost for what is no header."""
    kinds = {name: Kind.from_json(value) for name, value in message.kinds.items()}
    return Header.from_bytes(message.header, kinds)


def why_not_ready(state: EdgeStep, share: Share, segments: Segments, seconds: float, missing: Sequence[str]) -> str:
    """What a share waits for, by its phase; `missing` are the words of those who have not offered. Under the lock."""
    head = f"stage {state.route.consumer_stage.name} waited {seconds:.1f} s for rows of {state.name}. "
    if share.phase in (Phase.OFFERS, Phase.LAY_OUT):
        return head + ("Missing: " + "; ".join(missing) if missing else "Everything has been offered")
    if share.phase is Phase.ROOM:
        assert share.arrangement is not None
        item = Item(state.route.name, state.step, "share", share.number)
        return head + segments.explain_full(item, share.arrangement.contents.num_bytes, seconds)
    hosts = ", ".join(sorted(map(str, share.left)))
    return f"{head}On the way: rows of host {hosts}; {share.remote_bytes:,} bytes have come so far"
