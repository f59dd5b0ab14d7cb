"""The ranks of one host that receive an edge's weights, and the versions they read. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rljob_worker.databuffer.protocol.errors import OutOfOrder


@dataclass(slots=True)
class _Reader:
    wants_from: int = 0
    """The oldest version that it may still ask for."""
    num_had: int = 0
    """Chunks of that version that it was given."""


class Readers:
    """Which versions each rank still wants, and what it has had of the one it reads."""

    def __init__(self, edge: str, ranks: Iterable[int], num_sources: int) -> None:
        self._edge = edge
        self._num_sources = num_sources
        self._readers = {rank: _Reader() for rank in ranks}
        self._num_chunks: dict[int, dict[int, int]] = {}  # version -> source -> chunks, of sources that closed it

    def wanting(self, version: int) -> set[int]:
        """Ranks that have not had or skipped a version."""
        return {rank for rank, reader in self._readers.items() if reader.wants_from <= version}

    def closed(self, version: int, source: int, num_chunks: int) -> None:
        """A source has sent everything of a version."""
        if self.wanting(version):
            self._num_chunks.setdefault(version, {})[source] = num_chunks

    def late(self, version: int) -> list[int]:
        """Sources that have not closed a version."""
        closed = self._num_chunks.get(version, {})
        return [source for source in range(self._num_sources) if source not in closed]

    def is_new_to(self, rank: int, version: int) -> bool:
        """Whether a rank that asks for a version leaves older ones behind. Raises OutOfOrder when it left this one."""
        reader = self._readers[rank]
        if version < reader.wants_from:
            raise OutOfOrder(
                f"version {version} of {self._edge} is over: rank {rank} can have version {reader.wants_from} next"
            )
        return version > reader.wants_from

    def leave_behind(self, rank: int, version: int) -> None:
        """A rank wants nothing older than `version` any more."""
        reader = self._readers[rank]
        if version > reader.wants_from:
            reader.wants_from, reader.num_had = version, 0
        oldest = min(each.wants_from for each in self._readers.values())
        self._num_chunks = {kept: closed for kept, closed in self._num_chunks.items() if kept >= oldest}

    def gave(self, rank: int) -> None:
        """A rank has been given a chunk of the version it reads."""
        self._readers[rank].num_had += 1

    def total_had(self, rank: int, version: int) -> int | None:
        """Chunks of a version that a rank reads, once it has had all of all sources."""
        closed = self._num_chunks.get(version, {})
        total = sum(closed.values())
        return total if len(closed) == self._num_sources and self._readers[rank].num_had == total else None
