"""The tree of one source as one host sees it: slots, and who must still take what lies in them. Pure.

A chunk of a host that is not the source's own:

    offered by the parent ─▶ has a slot: fetched ─▶ sealed: offered to the children, read by ranks ─▶ slot free

On the source's host the source itself fills the slots. Chunks take slots, and children hear of them, in the order in
which the source sealed them, in whatever order their bytes arrive: a chunk never waits for a slot that a later one
holds, so the earliest that is not everywhere can always go on. Hence no circle of waits, also where slow readers of an
old version hold the slots that a new version waits for.

A slot that everybody has read stays with its version while that is kept (`versions`): on the source's host, whose slots
hold as many versions as the plan has, a source closes a version and goes on while hosts still fetch it. A host whose
rank asks for a version that has gone by asks its parent, then the source's host. Who holds it whole offers it again, to
that host alone; there its chunks go before newer ones, and have a slot that no newer one takes.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rljob_worker.databuffer.protocol.errors import OutOfOrder
from rljob_worker.databuffer.protocol.peer_side import (
    ChunkOffered,
    ChunkTaken,
    PeerMessage,
    SourceClosed,
    VersionGone,
    VersionWanted,
)
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.weights.chunk import WeightsChunk
from rljob_worker.databuffer.weights.versions import Versions
from rljob_worker.errors import PeerLost


@dataclass(frozen=True, slots=True)
class Send:
    """An effect: tell a peer."""

    host: Host
    message: PeerMessage


@dataclass(frozen=True, slots=True)
class Fetch:
    """An effect: copy the chunk from the parent into its slot."""

    host: Host
    chunk: WeightsChunk


Effect = Send | Fetch


@dataclass(slots=True)
class _Late:
    """A version that has gone by and is asked for again."""

    holder: Host
    """Who was asked last."""
    num_offered: int = 0
    held: tuple[int, ...] | None = None
    """What the source's host holds, once it has said that this is not of them."""


class SourceTree:
    """State of one source's tree on one host. Methods return what is to be done, in order."""

    def __init__(
        self,
        edge: str,
        source: int,
        parent: Host | None,
        children: Sequence[Host],
        slots: Sequence[int],
        slot_bytes: int,
        *,
        root: Host,
        num_versions: int,
    ) -> None:
        """parent: None on the source's own host, `root`.   num_versions: that exist at once, of the plan."""
        self.edge = edge
        self.source = source
        self.parent = parent
        self.children = tuple(children)
        self.root = root
        self.versions = Versions(edge, num_versions, is_store=parent is None)
        self._slot_bytes = slot_bytes
        self._free = list(reversed(slots))  # the last to come free is the next to be taken: its pages are warm
        self._for_late = [self._free.pop()] if parent is not None and num_versions > 1 else []
        self._slots_for_late = frozenset(self._for_late)
        self._written: set[int] = set()  # slots given to the source and not sealed
        self._arriving: deque[WeightsChunk] = deque()  # offered, without a slot; late ones first
        self._here: dict[tuple[int, int], WeightsChunk] = {}  # with a slot
        self._unreported: deque[WeightsChunk | SourceClosed] = deque()  # what the children have not heard of
        self._late: dict[int, _Late] = {}
        self._waiting: dict[int, dict[Host, None]] = {}
        """At the source: guests that want a version that is still to come, or not closed yet."""
        self.version = -1
        """The newest version that has begun."""
        self._next_index = 0
        self._closed = False

    @property
    def chunks(self) -> list[WeightsChunk]:
        """Those that have a slot."""
        return list(self._here.values())

    @property
    def num_held(self) -> int:
        """Slots that are not free."""
        return len(self._here) + len(self._written)

    def holder_of(self, version: int) -> Host | None:
        """Who offers this host the chunks of a version."""
        late = self._late.get(version)
        return self.parent if late is None else late.holder

    # ---- the source's own host

    def open(self, version: int) -> None:
        """A new version begins; what was reserved for one before and never sealed is given back."""
        if version <= self.version:
            raise OutOfOrder(f"version {version} of {self.edge} after version {self.version}: versions only grow")
        self._begin(version)
        self._free.extend(sorted(self._written, reverse=True))
        self._written.clear()

    def reserve(self) -> int | None:
        """Offset of a free slot, None while there is none."""
        offset = self._take_slot()
        if offset is not None:
            self._written.add(offset)
        return offset

    def seal(self, offset: int, num_bytes: int, table: bytes, checksum: int) -> WeightsChunk:
        """The source has filled a slot: a chunk that `good` is to be called for."""
        assert offset in self._written, f"{self.edge}: source {self.source} has no slot at {offset}"
        assert num_bytes <= self._slot_bytes, f"{self.edge}: {num_bytes} bytes in a slot of {self._slot_bytes}"
        self._written.remove(offset)
        chunk = WeightsChunk(
            ChunkOffered(self.edge, self.version, self.source, self._next_index, num_bytes, table, checksum), offset
        )
        self._next_index += 1
        self._here[chunk.key] = chunk
        self._unreported.append(chunk)
        return chunk

    def close(self) -> SourceClosed:
        """The source has sealed everything of its version: what `closed` is to be called with."""
        return SourceClosed(self.edge, self.version, self.source, self._next_index)

    def release(self, version: int) -> None:
        """Nobody will ask for `version` any more."""
        self.versions.release(version)
        self._give_back_read()

    # ---- what the parent, or another holder, says

    def offered(self, offer: ChunkOffered) -> list[Effect]:
        """Its holder offers a chunk."""
        late = self._late.get(offer.version)
        if late is not None:
            return self._offered_late(offer, late)
        if offer.version > self.version:
            self._begin(offer.version)
        if offer.version < self.version or offer.index != self._next_index or self._closed:
            raise self._out_of_turn(f"chunk {offer.index} of version {offer.version}")
        if offer.num_bytes > self._slot_bytes:
            raise PeerLost(
                f"host {self.parent} offered a chunk of {offer.num_bytes:,} bytes of {self.edge}: slots have "
                f"{self._slot_bytes:,}"
            )
        self._next_index += 1
        chunk = WeightsChunk(offer, holder=self.parent)
        self._arriving.append(chunk)
        self._unreported.append(chunk)
        return self._admit()

    def _offered_late(self, offer: ChunkOffered, late: _Late) -> list[Effect]:
        if late.held is not None or offer.index != late.num_offered or offer.num_bytes > self._slot_bytes:
            raise self._out_of_turn(f"chunk {offer.index} of version {offer.version}, asked for late,")
        late.num_offered += 1
        place = bisect.bisect_left(self._arriving, True, key=lambda chunk: not chunk.is_late)
        self._arriving.insert(place, WeightsChunk(offer, holder=late.holder, is_late=True))
        return self._admit()

    def closed(self, message: SourceClosed) -> list[Effect]:
        """The source has sent everything of a version."""
        late = self._late.get(message.version)
        if late is not None:
            if late.held is not None or message.num_chunks != late.num_offered:
                raise self._out_of_turn(f"the end of version {message.version}, asked for late,")
            del self._late[message.version]
            return []
        if message.version > self.version:
            self._begin(message.version)
        if message.version < self.version or message.num_chunks != self._next_index or self._closed:
            raise self._out_of_turn(f"the end of version {message.version} after {message.num_chunks} chunks")
        self._closed = True
        self.versions.closed(message.version, message.num_chunks)
        self._unreported.append(message)
        return self._tell() + self._answer_waiting()

    def _answer_waiting(self) -> list[Effect]:
        """What was asked for before it was there; versions that never came are gone."""
        due = [version for version in self._waiting if version <= self.version]
        asked = [(asker, version) for version in sorted(due) for asker in self._waiting.pop(version)]
        return [effect for asker, version in asked for effect in self.wanted(asker, version)]

    # ---- versions that have gone by

    def want(self, version: int) -> list[Effect]:
        """A rank asks for a version that has partly gone by."""
        if version in self._late:
            return []
        assert self.parent is not None
        return self._ask(version, self.parent)

    def wanted(self, asker: Host, version: int, *, waits: bool = False) -> list[Effect]:
        """A host asks for a version: it is offered once more, or it is not held. waits: whether one that is
        still to come is offered once the source has closed it."""
        if waits and (version > self.version or (version == self.version and not self._closed)):
            self._waiting.setdefault(version, {})[asker] = None
            return []
        chunks = [chunk for chunk in self.chunks if chunk.offer.version == version and chunk.sealed]
        if self.versions.num_chunks(version) != len(chunks):
            return [Send(asker, VersionGone(self.edge, version, self.source, self.versions.whole))]
        chunks.sort(key=lambda chunk: chunk.offer.index)
        for chunk in chunks:
            chunk.children.add(asker)
        closed = SourceClosed(self.edge, version, self.source, len(chunks))
        return [*(Send(asker, chunk.offer) for chunk in chunks), Send(asker, closed)]

    def forget(self, asker: Host) -> list[Effect]:
        """A host that asked for versions is gone."""
        for waiting in self._waiting.values():
            waiting.pop(asker, None)
        effects: list[Effect] = []
        for chunk in self.chunks:
            if asker in chunk.children:
                chunk.children.remove(asker)
                effects += self._free_when_read(chunk)
        return effects

    def gone(self, message: VersionGone) -> list[Effect]:
        """Who was asked for a version does not hold it: the source's host is asked after the parent."""
        late = self._late.get(message.version)
        if late is None or late.num_offered or late.held is not None:
            raise self._out_of_turn(f"nothing of version {message.version}, which it was not asked for,")
        if late.holder != self.root:
            return self._ask(message.version, self.root)
        late.held = message.held
        return []

    def not_held(self, version: int) -> tuple[int, ...] | None:
        """The versions that the source's host holds, once it has said that this is not one of them."""
        late = self._late.get(version)
        return None if late is None else late.held

    def _ask(self, version: int, holder: Host) -> list[Effect]:
        self._late[version] = _Late(holder)
        return [Send(holder, VersionWanted(self.edge, version, self.source))]

    # ---- what happens to chunks

    def good(self, chunk: WeightsChunk, readers: set[int], number: int) -> list[Effect]:
        """A chunk's bytes are here and right: `readers` may have it, and so may the children."""
        chunk.sealed = number
        chunk.readers = readers
        chunk.children = set() if chunk.is_late else set(self.children)
        effects: list[Effect] = []
        if chunk.holder is not None:
            offer = chunk.offer
            effects.append(Send(chunk.holder, ChunkTaken(offer.edge, offer.version, offer.source, offer.index)))
        return effects + self._tell() + self._free_when_read(chunk)

    def taken(self, child: Host, version: int, index: int) -> list[Effect]:
        """A child has copied a chunk."""
        chunk = self._here.get((version, index))
        if chunk is None or child not in chunk.children:
            raise PeerLost(
                f"host {child} took chunk {index} of {self.edge}, version {version}, which it was not offered"
            )
        chunk.children.remove(child)
        return self._free_when_read(chunk)

    def released(self, rank: int, version: int, index: int) -> list[Effect]:
        """A rank lets a chunk go; a second time is nothing."""
        chunk = self._here.get((version, index))
        return [] if chunk is None else self._let_go(rank, chunk)

    def passed_over(self, rank: int, version: int) -> list[Effect]:
        """A rank wants nothing of versions before `version` any more."""
        return [
            effect for chunk in self.chunks if chunk.offer.version < version for effect in self._let_go(rank, chunk)
        ]

    def find(self, version: int, index: int) -> WeightsChunk | None:
        """A chunk whose bytes are here and right."""
        chunk = self._here.get((version, index))
        return chunk if chunk is not None and chunk.sealed else None

    def _out_of_turn(self, what: str) -> PeerLost:
        return PeerLost(
            f"host {self.parent} offered {what} of source {self.source} of {self.edge} after {self._next_index} chunks "
            f"of version {self.version}{', which was closed' * self._closed}"
        )

    def _begin(self, version: int) -> None:
        self.versions.begin(version)
        self._give_back_read()
        self.version, self._next_index, self._closed = version, 0, False

    def _admit(self) -> list[Effect]:
        """Slots for those that wait, in their order."""
        effects: list[Effect] = []
        while self._arriving and (offset := self._take_slot(is_late=self._arriving[0].is_late)) is not None:
            chunk = self._arriving.popleft()
            chunk.offset = offset
            self._here[chunk.key] = chunk
            assert chunk.holder is not None
            effects.append(Fetch(chunk.holder, chunk))
        return effects

    def _take_slot(self, *, is_late: bool = False) -> int | None:
        """A free slot, for which a version that is kept may have to go."""
        if is_late and self._for_late:
            return self._for_late.pop()
        if not self._free and self.versions.may_drop:
            kept = next((chunk for chunk in self._here.values() if chunk.is_read), None)
            if kept is not None:
                self.versions.drop(kept.offer.version)
                self._give_back_read()
        return self._free.pop() if self._free else None

    def _tell(self) -> list[Effect]:
        """Offer on what is next and good."""
        effects: list[Effect] = []
        while self._unreported and (isinstance(self._unreported[0], SourceClosed) or self._unreported[0].sealed):
            notice = self._unreported.popleft()
            message = notice if isinstance(notice, SourceClosed) else notice.offer
            effects += [Send(child, message) for child in self.children]
        return effects

    def _let_go(self, rank: int, chunk: WeightsChunk) -> list[Effect]:
        if rank not in chunk.readers:
            return []
        chunk.readers.remove(rank)
        return self._free_when_read(chunk)

    def _free_when_read(self, chunk: WeightsChunk) -> list[Effect]:
        if not chunk.is_read:
            return []
        if not self.versions.keeps(chunk.offer.version):
            self._give_back(chunk)
        return self._admit()

    def _give_back_read(self) -> None:
        """The slots of what everybody has read, of versions that are not kept."""
        for chunk in self.chunks:
            if chunk.is_read and not self.versions.keeps(chunk.offer.version):
                self._give_back(chunk)

    def _give_back(self, chunk: WeightsChunk) -> None:
        del self._here[chunk.key]
        (self._for_late if chunk.offset in self._slots_for_late else self._free).append(chunk.offset)
