"""A version of some weights on a guest: what its sources send of it, and who wants it from here."""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_worker.databuffer.protocol import peer_side as say
from rljob_worker.databuffer.routes.hosts import Host

Key = tuple[int, int]
"""Number of the source, and of the chunk among its source's."""


@dataclass(slots=True, eq=False)
class GuestChunk:
    """A chunk that is offered to this guest."""

    offer: say.ChunkOffered
    holder: Host
    """Who offered it last."""
    offset: int | None = None
    """Its slot, once it has one."""
    is_good: bool = False
    """Whether its bytes are here and right."""
    children: set[Host] = field(default_factory=set)
    """Guests that it was offered to and have not copied it."""
    broken_since: float | None = None
    num_damages: int = 0

    @property
    def key(self) -> Key:
        return self.offer.source, self.offer.index


@dataclass(slots=True, eq=False)
class VersionPart:
    """What one source sends of a version."""

    holder: Host | None = None
    """Who was asked for it."""
    num_chunks: int | None = None
    """Once its source has closed it."""
    chunks: dict[int, GuestChunk] = field(default_factory=dict)
    children: dict[Host, None] = field(default_factory=dict)
    """Guests that want it from here."""
    held: tuple[int, ...] | None = None
    """What its source holds, once that has said that this is not of it."""

    @property
    def is_whole(self) -> bool:
        """Whether all of it is here."""
        is_here = len(self.chunks) == self.num_chunks
        return is_here and all(chunk.is_good for chunk in self.chunks.values())

    def offers_to(self, child: Host) -> list[say.ChunkOffered]:
        """Another guest wants the part from here: what there is of it."""
        self.children[child] = None
        here = [chunk for chunk in self.chunks.values() if chunk.is_good]
        for chunk in here:
            chunk.children.add(child)
        return [chunk.offer for chunk in here]

    def forget(self, child: Host) -> None:
        """Another guest is gone, or wants no more of it."""
        self.children.pop(child, None)
        for chunk in self.chunks.values():
            chunk.children.discard(child)


@dataclass(slots=True, eq=False)
class GuestVersion:
    """A version of the weights of one edge on this guest."""

    edge: str
    number: int
    parts: list[VersionPart]
    given: dict[int, set[Key]] = field(default_factory=dict)
    """By rank that reads it: the chunks that it was given."""
    wanted_at: int = 0
    """Grows from want to want."""

    @property
    def chunks(self) -> list[GuestChunk]:
        return [chunk for part in self.parts for chunk in part.chunks.values()]

    def missing(self) -> list[str]:
        """Parts that are not whole, and who was asked for them, in words."""
        return [
            f"source {number} of host {part.holder or 'unknown'}"
            for number, part in enumerate(self.parts)
            if not part.is_whole
        ]

    @property
    def num_slots(self) -> int:
        """Slots that it takes."""
        return sum(chunk.offset is not None for chunk in self.chunks)

    @property
    def may_drop(self) -> bool:
        """Whether nobody of this host reads it, and it does not come just now."""
        return not self.given and all(part.is_whole or part.held is not None for part in self.parts)
