"""A chunk on one host: where it lies, and who must still take it."""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_worker.databuffer.protocol.peer_side import ChunkOffered
from rljob_worker.databuffer.routes.hosts import Host


@dataclass(slots=True, eq=False)
class WeightsChunk:
    """A chunk on this host."""

    offer: ChunkOffered
    offset: int = -1
    """Its slot in the arena, once it has one."""
    sealed: int = 0
    """When its bytes became good, counted over the host's chunks from 1; 0 until then."""
    breaks: int = 0
    """Streams that ended inside it."""
    broken_since: float | None = None
    """When the first of them did."""
    damages: int = 0
    """Times that its bytes did not match its checksum."""
    readers: set[int] = field(default_factory=set)
    """Ranks of this host that have not let it go."""
    given: set[int] = field(default_factory=set)
    """Ranks that have been notified of it."""
    children: set[Host] = field(default_factory=set)
    """Hosts that have not copied it."""
    holder: Host | None = None
    """Who gives it to this host; None on its source's own."""
    is_late: bool = False
    """Whether its version had gone by and was asked for again: only for ranks of this host."""

    @property
    def key(self) -> tuple[int, int]:
        return self.offer.version, self.offer.index

    @property
    def is_read(self) -> bool:
        """Whether it is here, and everybody who was offered it has it."""
        return bool(self.sealed) and not self.readers and not self.children

    def __str__(self) -> str:
        """What it is, and whom it waits for."""
        offer = self.offer
        name = f"chunk {offer.index} of source {offer.source} of {offer.edge}, version {offer.version}"
        if not self.sealed:
            return f"{name}, on its way" + f" ({self.breaks} streams broke)" * (self.breaks > 0)
        if self.is_read:
            return f"{name}, kept until its version is released"
        late = [f"host {child}" for child in sorted(self.children)] + [f"rank {rank}" for rank in sorted(self.readers)]
        return f"{name}, not yet read by {', '.join(late)}"
