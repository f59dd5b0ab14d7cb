"""The tree of one source as one host sees it: slots, and who must still take what lies in them. Pure.

A chunk of a host that is not the source's own:

    offered by the parent ─▶ has a slot: fetched ─▶ sealed: offered to the children, read by ranks ─▶ slot free

On the source's host the source itself fills the slots. Chunks take slots, and children hear of them, in the order in
which the source sealed them, whatever order their bytes arrive in: a chunk never waits for a slot that a later one
holds, so the earliest that is not everywhere can always go on. Hence no circle of waits, also where slow readers of an
old version hold the slots that a new version waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rljob_worker.databuffer.protocol.errors import OutOfOrder
from rljob_worker.databuffer.protocol.peer_side import ChunkOffered, ChunkTaken, PeerMessage, SourceClosed
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.weights.chunk import Chunk
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
    chunk: Chunk


Effect = Send | Fetch


class Tree:
    """State of one source's tree on one host. Methods return what is to be done, in order."""

    def __init__(
        self,
        edge: str,
        source: int,
        parent: Host | None,
        children: Sequence[Host],
        slots: Iterable[int],
        slot_bytes: int,
    ) -> None:
        self.edge = edge
        self.source = source
        self.parent = parent
        self.children = tuple(children)
        self._slot_bytes = slot_bytes
        self._free = deque(slots)
        self._written: set[int] = set()  # slots given to the source and not sealed
        self._arriving: deque[Chunk] = deque()  # offered, without a slot
        self._here: dict[tuple[int, int], Chunk] = {}  # with a slot
        self._untold: deque[Chunk | SourceClosed] = deque()  # what the children have not heard of
        self.version = -1
        """The newest version that has begun."""
        self._next_index = 0
        self._closed = False

    @property
    def chunks(self) -> list[Chunk]:
        """Those that have a slot."""
        return list(self._here.values())

    @property
    def num_held(self) -> int:
        """Slots that are not free."""
        return len(self._here) + len(self._written)

    # ---- the source's own host

    def open(self, version: int) -> None:
        """A new version begins; what was reserved for one before and never sealed is given back."""
        if version <= self.version:
            raise OutOfOrder(f"version {version} of {self.edge} after version {self.version}: versions only grow")
        self._begin(version)
        self._free.extend(sorted(self._written))
        self._written.clear()

    def reserve(self) -> int | None:
        """Offset of a free slot, None while there is none."""
        if not self._free:
            return None
        offset = self._free.popleft()
        self._written.add(offset)
        return offset

    def seal(self, offset: int, num_bytes: int, table: bytes, checksum: int) -> Chunk:
        """The source has filled a slot: a chunk that `good` is to be called for."""
        assert offset in self._written, f"{self.edge}: source {self.source} has no slot at {offset}"
        assert num_bytes <= self._slot_bytes, f"{self.edge}: {num_bytes} bytes in a slot of {self._slot_bytes}"
        self._written.remove(offset)
        chunk = Chunk(
            ChunkOffered(self.edge, self.version, self.source, self._next_index, num_bytes, table, checksum), offset
        )
        self._next_index += 1
        self._here[chunk.key] = chunk
        self._untold.append(chunk)
        return chunk

    def close(self) -> SourceClosed:
        """The source has sealed everything of its version: what `closed` is to be called with."""
        return SourceClosed(self.edge, self.version, self.source, self._next_index)

    # ---- what the parent says

    def offered(self, offer: ChunkOffered) -> list[Effect]:
        """The parent holds a chunk."""
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
        chunk = Chunk(offer)
        self._arriving.append(chunk)
        self._untold.append(chunk)
        return self._admit()

    def closed(self, message: SourceClosed) -> list[Effect]:
        """The source has sent everything of a version."""
        if message.version > self.version:
            self._begin(message.version)
        if message.version < self.version or message.num_chunks != self._next_index or self._closed:
            raise self._out_of_turn(f"the end of version {message.version} after {message.num_chunks} chunks")
        self._closed = True
        self._untold.append(message)
        return self._tell()

    # ---- what happens to chunks

    def good(self, chunk: Chunk, readers: set[int], number: int) -> list[Effect]:
        """A chunk's bytes are here and right: `readers` may have it, and so may the children."""
        chunk.sealed = number
        chunk.readers = readers
        chunk.children = set(self.children)
        effects: list[Effect] = []
        if self.parent is not None:
            offer = chunk.offer
            effects.append(Send(self.parent, ChunkTaken(offer.edge, offer.version, offer.source, offer.index)))
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

    def find(self, version: int, index: int) -> Chunk | None:
        """A chunk whose bytes are here and right."""
        chunk = self._here.get((version, index))
        return chunk if chunk is not None and chunk.sealed else None

    def _out_of_turn(self, what: str) -> PeerLost:
        return PeerLost(
            f"host {self.parent} offered {what} of source {self.source} of {self.edge} after {self._next_index} chunks "
            f"of version {self.version}{', which was closed' * self._closed}"
        )

    def _begin(self, version: int) -> None:
        self.version, self._next_index, self._closed = version, 0, False

    def _admit(self) -> list[Effect]:
        """Slots for those that wait, in their order."""
        effects: list[Effect] = []
        while self._arriving and self._free:
            chunk = self._arriving.popleft()
            chunk.offset = self._free.popleft()
            self._here[chunk.key] = chunk
            assert self.parent is not None
            effects.append(Fetch(self.parent, chunk))
        return effects

    def _tell(self) -> list[Effect]:
        """Offer on what is next and good."""
        effects: list[Effect] = []
        while self._untold and (isinstance(self._untold[0], SourceClosed) or self._untold[0].sealed):
            told = self._untold.popleft()
            message = told if isinstance(told, SourceClosed) else told.offer
            effects += [Send(child, message) for child in self.children]
        return effects

    def _let_go(self, rank: int, chunk: Chunk) -> list[Effect]:
        if rank not in chunk.readers:
            return []
        chunk.readers.remove(rank)
        return self._free_when_read(chunk)

    def _free_when_read(self, chunk: Chunk) -> list[Effect]:
        if not chunk.sealed or chunk.readers or chunk.children:
            return []
        del self._here[chunk.key]
        self._free.append(chunk.offset)
        return self._admit()
