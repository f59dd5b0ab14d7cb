"""Versions of weights on a guest: fetched when a worker wants them, kept for as long as there is room, passed on.

A guest asks the owner that it asks first who gives it a version: another guest, or the hosts of the sources. From these
it wants each source's part; chunks are offered, fetched and acknowledged as in the trees of the gang. If the guest that
gives is lost, or has dropped the version, the rest comes from the sources. Unlike in a tree versions may come in any
order, and again: a lease that was given again may be of an older step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rljob_worker.databuffer.links.links import Links
from rljob_worker.databuffer.protocol import peer_side as say
from rljob_worker.databuffer.protocol.errors import OutOfOrder, require
from rljob_worker.databuffer.protocol.worker_answers import ChunkLocation, Complete
from rljob_worker.databuffer.protocol.worker_calls import NextChunk, SkipVersion
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.routes.weights_route import SourceRank, WeightsRoute
from rljob_worker.databuffer.rows.byte_stream import Bytes
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.weights.guest_fetches import ChunkFetches, taken
from rljob_worker.databuffer.weights.guest_version import GuestChunk, GuestVersion, VersionPart
from rljob_worker.databuffer.weights.versions import version_list
from rljob_worker.databuffer.work import Work
from rljob_worker.errors import PeerLost


class GuestWeights:
    """All edges of weights on one guest; calls may come from any thread."""

    def __init__(
        self,
        here: Host,
        home: Host,
        routes: Mapping[str, WeightsRoute],
        slots: Mapping[tuple[str, int], Sequence[int]],
        memory: Bytes,
        *,
        monitor: Monitor,
        links: Links,
        streams: Work,
        later: Callable[[float, Callable[[], None]], None],
        retry_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """home: the owner that is asked first. slots: offsets by (edge, source)."""
        self._here, self._home, self._routes, self._memory = here, home, routes, memory
        self._monitor, self._links = monitor, links
        self._fetches = ChunkFetches(
            monitor=monitor,
            links=links,
            streams=streams,
            later=later,
            retry_seconds=retry_seconds,
            is_due=self._is_due,
            arrived=self._arrived,
            clock=clock,
        )
        self._free = {key: list(reversed(offsets)) for key, offsets in slots.items()}
        self._versions: dict[tuple[str, int], GuestVersion] = {}
        self._arriving: list[tuple[GuestVersion, GuestChunk]] = []
        """Offered, without a slot."""
        self._num_wants = 0

    # ---- workers

    def want(self, worker: WorkerId, request: NextChunk) -> None:
        """A worker reads a version: it is asked for, unless it is here or on its way."""
        key = request.edge, request.version
        with self._monitor.change():
            version = self._versions.get(key)
            if version is not None and any(part.held is not None for part in version.parts) and not version.given:
                self._drop(version)  # it may have been too early: ask again
                version = None
            if version is None:
                parts = [VersionPart() for _ in self._routes[request.edge].sources]
                version = self._versions[key] = GuestVersion(*key, parts)
                self._links.send(self._home, say.ParentRequested(*key))
            if worker.rank not in version.given:
                self._num_wants += 1
                version.wanted_at = self._num_wants
                version.given[worker.rank] = set()

    def next(self, worker: WorkerId, request: NextChunk) -> ChunkLocation | Complete | None:
        """A chunk that the worker has not had since it began to read; under the lock. Raises OutOfOrder where nobody
        holds the version any more."""
        version = self._versions[request.edge, request.version]
        given = version.given[worker.rank]
        for chunk in version.chunks:
            if chunk.is_good and chunk.key not in given:
                given.add(chunk.key)
                offer, offset = chunk.offer, chunk.offset
                assert offset is not None
                return ChunkLocation(
                    source=offer.source,
                    index=offer.index,
                    offset=offset,
                    num_bytes=offer.num_bytes,
                    table=offer.table,
                )
        if all(part.is_whole for part in version.parts):
            del version.given[worker.rank]
            self._admit()
            return Complete(num_chunks=len(given))
        held = next((part.held for part in version.parts if part.held is not None), None)
        if held is not None:
            del version.given[worker.rank]
            raise OutOfOrder(
                f"nobody holds version {version.number} of {version.edge} any more: {version_list(held)} held"
            )
        return None

    def skip(self, worker: WorkerId, request: SkipVersion) -> None:
        """A worker reads no more of a version."""
        with self._monitor.change():
            version = self._versions.get((request.edge, request.version))
            if version is not None:
                version.given.pop(worker.rank, None)
                self._admit()

    def explain(self, request: NextChunk) -> str:
        """What a worker waits for."""
        with self._monitor.look():
            version = self._versions[request.edge, request.version]
            late = version.missing()
            num_waiting = len(self._arriving)
        words = [f"{num_waiting} chunks have no room: half of dataBuffer.memory has to hold two versions"]
        return f"{request.edge}, version {request.version}: {'; '.join([*late, *words[: bool(num_waiting)]])} missing"

    @property
    def used_bytes(self) -> int:
        """Bytes of slots that are not free; under the lock."""
        versions = self._versions.values()
        return sum(version.num_slots * self._routes[version.edge].slot_bytes for version in versions)

    # ---- peers

    def hear_parent(self, sender: Host, message: say.ParentNamed) -> None:
        """The owner says who gives a version."""
        require(sender == self._home, f"host {sender} is not the one that host {self._here} asks")
        with self._monitor.change():
            version = self._versions.get((message.edge, message.version))
            if version is not None:
                guest = Host.named(message.guest) if message.guest else None
                for source, part in self._parts(version):
                    if part.holder is None:
                        self._ask(version, source, part, guest or source.host)
        if message.guest:
            self._links.watch([Host.named(message.guest)])

    def announced(self, sender: Host, message: say.WeightsMessage) -> None:
        """A guest wants a version, or who was asked for one answers."""
        require(message.edge in self._routes, f"there are no weights {message.edge!r} in this job")
        require(0 <= message.source < len(self._routes[message.edge].sources), f"{message.edge} has no such source")
        with self._monitor.change():
            version = self._versions.get((message.edge, message.version))
            part = None if version is None else version.parts[message.source]
            if isinstance(message, say.VersionWanted):
                self._wanted(sender, message, part)
            elif isinstance(message, say.ChunkTaken):
                if part is not None and message.index in part.chunks:
                    part.chunks[message.index].children.discard(sender)
            elif version is not None and part is not None and sender == part.holder:
                self._answered(version, part, message)
            elif isinstance(message, say.ChunkOffered):  # from one that was asked before: it is not to keep it
                self._links.send(sender, taken(message))

    def offered(self, ticket: say.ChunkTicket) -> Bytes:
        """The bytes of a chunk that is here. Raises PeerLost where it is not."""
        with self._monitor.look():
            version = self._versions.get((ticket.edge, ticket.version))
            known = version is not None and 0 <= ticket.source < len(version.parts)
            chunk = version.parts[ticket.source].chunks.get(ticket.index) if version is not None and known else None
            if chunk is None or not chunk.is_good:
                raise PeerLost(f"host {self._here} does not hold {ticket}")
            return self._slot(chunk)

    def lose(self, guest: Host) -> None:
        """Another guest is gone: nothing is kept for it, and what it was to give comes from the sources."""
        with self._monitor.change():
            for version in self._versions.values():
                for source, part in self._parts(version):
                    part.forget(guest)
                    if part.holder == guest and not part.is_whole:
                        self._ask(version, source, part, source.host)

    # ---- what peers say

    def _wanted(self, asker: Host, message: say.VersionWanted, part: VersionPart | None) -> None:
        if part is None or part.held is not None:
            self._links.send(asker, say.VersionGone(message.edge, message.version, message.source, ()))
            return
        self._links.send(asker, *part.offers_to(asker))
        if part.num_chunks is not None:
            self._links.send(asker, say.SourceClosed(message.edge, message.version, message.source, part.num_chunks))

    def _answered(self, version: GuestVersion, part: VersionPart, message: say.WeightsMessage) -> None:
        if isinstance(message, say.SourceClosed):
            part.num_chunks = message.num_chunks
            for child in part.children:
                self._links.send(child, message)
        elif isinstance(message, say.VersionGone):
            source = self._routes[version.edge].sources[message.source]
            if part.holder == source.host:
                part.held = message.held
                self._refuse_children(version, source, part)
            else:
                self._ask(version, source, part, source.host)
        elif isinstance(message, say.ChunkOffered):
            self._offered(version, part, message)

    def _offered(self, version: GuestVersion, part: VersionPart, offer: say.ChunkOffered) -> None:
        size = self._routes[version.edge].slot_bytes
        require(
            0 <= offer.num_bytes <= size, f"a chunk of {offer.num_bytes:,} bytes of {offer.edge}: slots have {size:,}"
        )
        assert part.holder is not None
        chunk = part.chunks.get(offer.index)
        if chunk is None:
            chunk = part.chunks[offer.index] = GuestChunk(offer, part.holder)
            self._arriving.append((version, chunk))
            self._admit()
            return
        chunk.holder = part.holder
        if chunk.is_good:
            self._links.send(part.holder, taken(offer))
        elif chunk.offset is not None:
            self._fetches.submit(version, chunk)

    def _ask(self, version: GuestVersion, source: SourceRank, part: VersionPart, holder: Host) -> None:
        part.holder = holder
        self._links.send(holder, say.VersionWanted(version.edge, version.number, source.number))

    # ---- room

    def _admit(self) -> None:
        """Slots for what was offered, for which versions that nobody reads may have to go. Under the lock."""
        waiting = []
        for version, chunk in self._arriving:
            if self._versions.get((version.edge, version.number)) is not version:
                continue
            free = self._free[version.edge, chunk.offer.source]
            if not free:
                self._make_room(version)
            if free:
                chunk.offset = free.pop()
                self._fetches.submit(version, chunk)
            else:
                waiting.append((version, chunk))
        self._arriving = waiting

    def _make_room(self, coming: GuestVersion) -> None:
        """Drop the version that was wanted longest ago."""
        others = [v for v in self._versions.values() if v.edge == coming.edge and v is not coming and v.may_drop]
        if others:
            self._drop(min(others, key=lambda version: version.wanted_at))

    def _drop(self, version: GuestVersion) -> None:
        del self._versions[version.edge, version.number]
        for source, part in self._parts(version):
            self._refuse_children(version, source, part)
        for chunk in version.chunks:
            if chunk.offset is not None:
                self._free[version.edge, chunk.offer.source].append(chunk.offset)

    def _refuse_children(self, version: GuestVersion, source: SourceRank, part: VersionPart) -> None:
        """Those that want what is not here any more are to ask the source."""
        for child in part.children:
            self._links.send(child, say.VersionGone(version.edge, version.number, source.number, ()))
        part.children.clear()

    # ---- bytes

    def _is_due(self, version: GuestVersion, chunk: GuestChunk, holder: Host) -> bool:
        """Whether a chunk is still to come from a host."""
        is_known = self._versions.get((version.edge, version.number)) is version
        return is_known and not chunk.is_good and chunk.holder == holder

    def _arrived(self, version: GuestVersion, chunk: GuestChunk, holder: Host, data: Bytes) -> None:
        with self._monitor.change():
            if not self._is_due(version, chunk, holder):
                return
            self._slot(chunk)[:] = data
            chunk.is_good = True
            self._links.send(holder, taken(chunk.offer))
            children = version.parts[chunk.offer.source].children
            chunk.children.update(children)
            for child in children:
                self._links.send(child, chunk.offer)
            if all(part.is_whole for part in version.parts):
                self._unwatch_parents(version)

    def _unwatch_parents(self, version: GuestVersion) -> None:
        for part in version.parts:
            if part.holder is not None and self._routes[version.edge].is_guest(part.holder):
                self._links.unwatch(part.holder)

    def _slot(self, chunk: GuestChunk) -> Bytes:
        assert chunk.offset is not None
        return self._memory[chunk.offset : chunk.offset + chunk.offer.num_bytes]

    def _parts(self, version: GuestVersion) -> list[tuple[SourceRank, VersionPart]]:
        return list(zip(self._routes[version.edge].sources, version.parts, strict=True))
