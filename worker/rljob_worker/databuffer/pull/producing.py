"""Rows that the workers of this host put, until every consumer has taken them.

Backpressure acts here: a put waits until the arena has room and the rows of two steps before are read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rljob_worker.databuffer.links.links import Links
from rljob_worker.databuffer.protocol.errors import Malformed, OutOfOrder, require
from rljob_worker.databuffer.protocol.peer_side import RowsOffered, RowsTaken
from rljob_worker.databuffer.protocol.worker_answers import NotYet, Reservation
from rljob_worker.databuffer.protocol.worker_calls import ReserveRows, SealRows
from rljob_worker.databuffer.pull.edges import Edges, EdgeStep, ProducerPart
from rljob_worker.databuffer.routes.assignment import Assignment, ProducerLayout
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.routes.stage_route import StageRoute
from rljob_worker.databuffer.rows.segment import Bytes, views
from rljob_worker.databuffer.rows.stream import FEW_BYTES, Selection, few_bytes_for, header_of, packed
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.store.segment_files import rounded
from rljob_worker.databuffer.store.segments import Item, Segment, SegmentReader, Segments, explain_late
from rljob_worker.databuffer.work import Work
from rljob_worker.errors import DeadlineExceeded

Int64 = NDArray[np.int64]

Gathers = Callable[[str, int, int, bytes], None]
"""Says what a part holds, to the tree: topic, step, part, layout."""


def layout_topic(edge: str) -> str:
    """Under what name the layouts of an edge are gathered."""
    return f"layout/{edge}"


class Producing:
    """Parts: room for them, who gets their rows, who has taken them."""

    def __init__(
        self,
        here: Host,
        edges: Edges,
        segments: Segments,
        memory: Bytes,
        *,
        monitor: Monitor,
        links: Links,
        work: Work,
        gathers: Gathers,
        offers_here: Callable[[EdgeStep, int], None],
        counts: Callable[[str, int, int], None],
        staleness: int,
        few_bytes: int = FEW_BYTES,
    ) -> None:
        self._here = here
        self._edges = edges
        self._segments = segments
        self._memory = memory
        self._monitor = monitor
        self._links = links
        self._work = work
        self._gathers = gathers
        self._offers_here = offers_here
        self._counts = counts
        self._staleness = staleness
        self._leased: dict[Item, Segment] = {}
        """Room that workers are writing to."""
        self._largest: dict[str, int] = {}
        """Bytes of the largest part of an edge that was reserved here."""
        self.few_bytes = few_bytes

    # ---- putting

    def reserve(self, worker: WorkerId, request: ReserveRows) -> Reservation | NotYet:
        """Room for a worker's part. Raises DeadlineExceeded when time is up, or at once when waiting cannot help;
        OutOfOrder for a part that another process of the worker puts or has put."""
        route = self._edges.routes[request.edge]
        part = route.part_of(worker)
        assert part is not None, f"{worker} puts nothing on edge {request.edge}"
        item = Item(request.edge, request.step, "part", part)
        with self._monitor.look():
            outlasting = [s for s in self._segments.held() if self._outlasts(route, worker, item, s)]
            why = "are inputs of this step or wait for stages that run later on this host"
            self._segments.refuse_hopeless(item, request.num_bytes, outlasting, why)
        return self._monitor.poll(
            request,
            lambda: self._try_reserve(worker, item, request.num_bytes),
            lambda: self._no_room(item, request),
        )

    def seal(self, worker: WorkerId, request: SealRows) -> None:
        """A part is written: tell who it is for, or tell the others what is in it.

        Raises OutOfOrder for other room than `reserve` gave, or when it was sealed before.
        """
        edge, step, contents = request.edge, request.step, request.contents
        route = self._edges.routes[edge]
        number = route.part_of(worker)
        assert number is not None, f"{worker} puts nothing on edge {edge}"
        item = Item(edge, step, "part", number)
        with self._monitor.change():
            state, segment = self._edges.at(edge, step), self._leased.get(item)
            if segment is None or segment.offset != request.offset:
                raise OutOfOrder(
                    f"{item} was put before, or has no room at {request.offset}: {_ONE_PROCESS.format(worker)}"
                )
            del self._leased[item]
            segment.contents, rows = contents, views(self._memory, segment.offset, contents)
            state.parts[number] = ProducerPart(segment, rows)
            state.sealed.add(number)
        self._counts(edge, contents.num_rows, contents.num_bytes)
        layout = ProducerLayout.of_part(number, rows.index)
        assert route.is_of_step(step, rows.index), f"{item} has rows of another step, or of no group"
        if route.needs_layouts:
            self._gathers(layout_topic(edge), step, number, layout.to_bytes())
        else:
            fed = self._hand_out(state, {number: route.assign(step, layout)})
            if fed:
                self._work.submit(f"offers of {state.name}", lambda: self._offer(state, fed))

    def assigned(self, edge: str, step: int, payload: bytes) -> None:
        """The layout of a step is complete: every host works out alike who gets which row."""
        route, layout = self._edges.routes[edge], ProducerLayout.from_bytes(payload)
        is_part = (layout.parts >= 0) & (layout.parts < route.num_parts)
        is_right = is_part.all() and route.is_of_step(step, layout.index)
        require(bool(is_right), f"the layout of edge {edge}, step {step}, has rows of another step, group or part")
        assignment = Assignment(layout, route.assign(step, layout), route.num_shares)
        with self._monitor.change():
            state = self._edges.at(edge, step)
            state.assignment = assignment
            here = list(state.parts)
        self._offer(state, self._hand_out(state, {number: assignment.shares_of_part(number) for number in here}))

    # ---- giving

    def selections(self, edge: str, step: int, share: int) -> list[Selection]:
        """The rows of a share that are held here: what was offered."""
        with self._monitor.look():
            state = self._edges.find(edge, step)
            parts = [] if state is None else state.feeding(share)
            words = f"share {share} of edge {edge}, step {step}, is not held here: taken before, or never offered"
            require(bool(parts), words)
            return [self._selection(part, share) for part in parts]

    def taken(self, host: Host, message: RowsTaken) -> None:
        """A data buffer has copied what was offered to it."""
        with self._monitor.change():
            state = self._edges.find(message.edge, message.step)
            for share in message.shares:
                reader = SegmentReader(str(host), share)
                parts = [] if state is None else state.feeding(share)
                offered = any(reader in (part.segment.readers or ()) for part in parts)
                if state is None or not offered:
                    raise Malformed(f"share {share} was not offered to host {host}, or taken before")
                self.release(state, share, host)

    def release(self, state: EdgeStep, share: int, host: Host) -> None:
        """Release a share for a data buffer that may be our own; under the lock."""
        for part in state.feeding(share):
            self._segments.release(part.segment, SegmentReader(str(host), share))
        self.forget_read(state)

    @staticmethod
    def forget_read(state: EdgeStep) -> None:
        """Parts that everybody has read are not here any more; under the lock."""
        state.parts = {number: part for number, part in state.parts.items() if part.segment.readers != set()}

    def unread(self, worker: WorkerId) -> list[Segment]:
        """What a worker has put and somebody has not read; under the lock."""
        return [segment for segment in self._segments.held() if self._is_from(segment, worker)]

    def readers(self, worker: WorkerId) -> set[Host]:
        """Other hosts that have still to read what a worker has put; under the lock."""
        names = {reader.where for item in self.unread(worker) for reader in item.readers or () if not reader.is_rank}
        return {Host.named(name) for name in names} - {self._here}

    def late_readers(self, worker: WorkerId, seconds: float) -> DeadlineExceeded:
        """Why a worker cannot leave: who has not read what it put."""
        late = "; ".join(explain_late(segment) for segment in self.unread(worker)[:8])
        return DeadlineExceeded(f"{worker} waited {seconds:.1f} s for what it put to be read: {late or 'nothing'}")

    def _hand_out(self, state: EdgeStep, shares_of_rows: Mapping[int, Int64]) -> list[int]:
        """It is known who gets the rows of some parts; returns the shares that other hosts are still to be offered."""
        fed = {number: self._rows_of(state, number, shares) for number, shares in shares_of_rows.items()}
        with self._monitor.change():
            for number, rows_of in fed.items():
                part = state.parts[number]
                part.rows_of = rows_of
                readers = [SegmentReader(str(h), share) for share in rows_of for h in state.route.consumer_hosts(share)]
                self._segments.set_readers(part.segment, readers)
            self.forget_read(state)
            shares = sorted({share for rows_of in fed.values() for share in rows_of})
            complete = [share for share in shares if self._is_complete(state, share)]
            at = {share: state.route.consumer_hosts(share) for share in complete}
        for share in complete:
            if self._here in at[share]:
                self._offers_here(state, share)
        return [share for share in complete if at[share] != [self._here]]

    def _rows_of(self, state: EdgeStep, number: int, shares: Int64) -> dict[int, Int64]:
        rows_of = split_by(shares)
        fed = state.route.shares_fed_by(number, state.assignment)
        strays = sorted(rows_of.keys() - set(fed))
        assert not strays, f"part {number} of {state.name} has rows of ranks {strays}; by ordinal it feeds {list(fed)}"
        return {share: rows_of.get(share, _NONE) for share in fed}

    @staticmethod
    def _is_complete(state: EdgeStep, share: int) -> bool:
        """Whether everything of this host that feeds a share is there: so once, with the last of its parts."""
        if state.assignment is not None:  # a layout is complete only when all parts are sealed
            return True
        here = [part for part in state.route.parts_of(share, None) if state.route.producer_host(part) == state.here]
        return all(part in state.parts and state.parts[part].rows_of is not None for part in here)

    def _offer(self, state: EdgeStep, shares: Sequence[int]) -> None:
        """Tell the other hosts that read them: shares of the same hosts in one go, those of the first hosts at once."""
        for hosts, together in itertools.groupby(shares, state.route.consumer_hosts):
            messages = [self._offer_of(state, share) for share in together]
            for host in hosts:
                if host != self._here:
                    self._links.send(host, *messages)

    def _offer_of(self, state: EdgeStep, share: int) -> RowsOffered:
        selections = self.selections(state.route.name, state.step, share)
        header = header_of(selections, state.route.name)
        are_few = header.num_bytes <= few_bytes_for(len(state.route.producer_hosts), self.few_bytes)
        rows = packed(selections) if are_few else b""
        return RowsOffered(state.route.name, state.step, share, header.to_bytes(), header.kinds, rows)

    @staticmethod
    def _selection(part: ProducerPart, share: int) -> Selection:
        assert part.rows_of is not None
        return part.views, part.rows_of[share]

    # ---- room

    def _try_reserve(self, worker: WorkerId, item: Item, num_bytes: int) -> Reservation | None:
        if item in self._leased or item.number in self._edges.at(item.edge, item.step).sealed:
            raise OutOfOrder(f"{item} was put before, or is being put: {_ONE_PROCESS.format(worker)}")
        self._largest[item.edge] = max(num_bytes, self._largest.get(item.edge, 0))
        owed = self._owed_bytes(item)
        if self._braked_by(item) is not None or (owed and self._segments.largest_left(num_bytes) < owed):
            return None
        segment = self._segments.try_reserve(item, num_bytes)
        if segment is None:
            return None
        self._leased[item] = segment
        return Reservation(offset=segment.offset)

    def _owed_bytes(self, item: Item) -> int:
        """Room that parts of earlier steps will need, as large as the largest of their edge so far. Without it ranks
        that run ahead fill the arena, keep a straggler out, and nobody can read what they put before its part is there.
        """
        return sum(
            rounded(self._largest.get(edge, 0))
            for edge in self._edges.routes
            for state in self._edges.steps(edge)
            if state.step < item.step
            for part in state.unsealed
            if Item(edge, state.step, "part", part) not in self._leased
        )

    def _braked_by(self, item: Item) -> Segment | None:
        """The part, `staleness` + 2 steps back or more, that somebody has still to read: nobody gets further ahead."""
        for state in self._edges.steps(item.edge):
            if state.step <= item.step - self._staleness - 2 and item.number in state.parts:
                return state.parts[item.number].segment
        return None

    def _no_room(self, item: Item, request: ReserveRows) -> DeadlineExceeded:
        with self._monitor.look():
            behind = self._braked_by(item)
            if behind is None:
                words = self._segments.explain_full(item, request.num_bytes, request.waited)
                owed = self._owed_bytes(item)
                kept = f". {owed:,} bytes are kept for parts of earlier steps that are still to be put" if owed else ""
                return DeadlineExceeded(words + kept)
            waited = f"{item} waited {request.waited:.1f} s for readers {self._staleness + 2} steps behind"
            return DeadlineExceeded(f"{waited}: {explain_late(behind)}")

    def _outlasts(self, route: StageRoute, worker: WorkerId, item: Item, segment: Segment) -> bool:
        """Whether a segment is certainly held until after the put of `item`."""
        if segment.item.step < item.step:
            return False
        other = self._edges.routes.get(segment.item.edge)
        if other is None:  # rows of a lease: of this step they are read before anything is put
            return segment.item.step > item.step
        ranks = [reader.share for reader in segment.readers or () if reader.is_rank]
        if ranks or segment.item.what == "share":
            return route.in_step or worker.rank in ranks
        return segment.item.what == "part" and segment.item != item and route.is_later(other)

    def _is_from(self, segment: Segment, worker: WorkerId) -> bool:
        if segment.item.what != "part":
            return False
        route = self._edges.routes[segment.item.edge]
        return route.producer(segment.item.number) == worker


_NONE = np.empty(0, np.int64)
_ONE_PROCESS = "one process of {} puts it, once"


def split_by(keys: Int64) -> dict[int, Int64]:
    """Positions of every distinct key, ascending; [rows] -> key -> [its rows]."""
    order = np.argsort(keys, kind="stable")
    unique, first = np.unique(keys[order], return_index=True)
    return dict(zip(unique.tolist(), np.split(order, first[1:]), strict=True)) if len(keys) else {}
