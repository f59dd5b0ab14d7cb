"""All trees of one edge on one host, and the ranks that read from them: events in, effects out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rljob_worker.databuffer.protocol.errors import OutOfOrder
from rljob_worker.databuffer.protocol.peer_side import (
    ChunkOffered,
    ChunkTaken,
    SourceClosed,
    VersionGone,
    VersionWanted,
    WeightsMessage,
)
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.weights_route import SourceRank, WeightsRoute
from rljob_worker.databuffer.weights.chunk import WeightsChunk
from rljob_worker.databuffer.weights.tree import Effect, SourceTree
from rljob_worker.databuffer.weights.versions import version_list
from rljob_worker.errors import PeerLost

MAX_NAMED = 3
"""Chunks that a message names."""


@dataclass(slots=True)
class _Reader:
    wants_from: int = 0
    """The oldest version that it may still ask for."""
    num_had: int = 0
    """Chunks of that version that it was given."""


class VersionReaders:
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
        oldest = min(reader.wants_from for reader in self._readers.values())
        self._num_chunks = {kept: closed for kept, closed in self._num_chunks.items() if kept >= oldest}

    def gave(self, rank: int) -> None:
        """A rank has been given a chunk of the version it reads."""
        self._readers[rank].num_had += 1

    def total_had(self, rank: int, version: int) -> int | None:
        """Chunks of a version that a rank reads, once it has had all of all sources."""
        closed = self._num_chunks.get(version, {})
        total = sum(closed.values())
        return total if len(closed) == self._num_sources and self._readers[rank].num_had == total else None


class Edge:
    """State of one edge of weights on one host."""

    def __init__(self, here: Host, route: WeightsRoute, slots: Mapping[tuple[str, int], Sequence[int]]) -> None:
        """slots: offsets by (edge, source)."""
        self.route = route
        self._trees = {
            source.number: SourceTree(
                route.name,
                source.number,
                route.parent(source, here),
                route.children(source, here),
                slots[route.name, source.number],
                route.slot_bytes,
                root=source.host,
                num_versions=route.num_versions,
            )
            for source in route.sources_through(here)
        }
        assert not route.is_guest(here), "guests are in no tree"
        self._readers = VersionReaders(route.name, route.readers(here), len(route.sources))
        self._num_good = 0

    def tree(self, source: int) -> SourceTree:
        """The tree of a source. Raises PeerLost when it does not pass through this host."""
        if source not in self._trees:
            raise PeerLost(f"source {source} of {self.route.name} has no business with this host")
        return self._trees[source]

    @property
    def used_bytes(self) -> int:
        """Bytes of slots that are not free."""
        return self.route.slot_bytes * sum(tree.num_held for tree in self._trees.values())

    # ---- sources of this host

    def seal(self, source: int, offset: int, num_bytes: int, table: bytes, checksum: int) -> list[Effect]:
        """A source has filled a slot."""
        return self.good(self.tree(source).seal(offset, num_bytes, table, checksum))

    def close(self, source: int) -> list[Effect]:
        """A source has sealed everything of its version."""
        return self._closed(self.tree(source).close())

    def release_version(self, source: int, version: int) -> None:
        """Nobody will ask a source for a version any more."""
        self.tree(source).release(version)

    # ---- peers

    def announced(self, sender: Host, message: WeightsMessage) -> list[Effect]:
        """A peer said something. Raises PeerLost when it cannot be so."""
        tree = self.tree(message.source)
        if isinstance(message, ChunkTaken):
            return tree.taken(sender, message.version, message.index)
        if isinstance(message, VersionWanted):
            return tree.wanted(sender, message.version, waits=self.route.is_guest(sender))
        if sender != tree.holder_of(message.version):
            raise PeerLost(f"host {sender} is not above this one in source {message.source} of {self.route.name}")
        if isinstance(message, VersionGone):
            return tree.gone(message)
        return tree.offered(message) if isinstance(message, ChunkOffered) else self._closed(message)

    def forget(self, guest: Host) -> list[Effect]:
        """A guest is gone: nothing is kept for it."""
        return [effect for tree in self._trees.values() for effect in tree.forget(guest)]

    def good(self, chunk: WeightsChunk) -> list[Effect]:
        """The bytes of a chunk are in its slot, and right."""
        self._num_good += 1
        readers = self._readers.wanting(chunk.offer.version)
        return self.tree(chunk.offer.source).good(chunk, readers, self._num_good)

    # ---- ranks of this host that read

    def begins(self, rank: int, version: int) -> list[Effect]:
        """A rank asks for a version, and so leaves older ones behind; what of it has gone by is asked for again. Raises
        OutOfOrder when the rank cannot have it."""
        effects = self._leave_behind(rank, version) if self._readers.is_new_to(rank, version) else []
        late = self._readers.late(version)
        for tree in self._trees.values():
            if tree.version > version and tree.source in late:
                effects += tree.want(version)
        return effects

    def next(self, rank: int, version: int) -> WeightsChunk | int | None:
        """What a rank reads next: the oldest chunk it was not given, the number of chunks after the last, or None.

        Raises OutOfOrder for a version that nobody holds any more.
        """
        mine = [
            chunk
            for tree in self._trees.values()
            for chunk in tree.chunks
            if chunk.offer.version == version and rank in chunk.readers and rank not in chunk.given
        ]
        if mine:
            return min(mine, key=lambda chunk: chunk.sealed)
        for tree in self._trees.values():
            if (held := tree.not_held(version)) is not None:
                raise OutOfOrder(
                    f"nobody holds version {version} of {self.route.name} any more: {version_list(held)} held by "
                    "source "
                    f"{tree.source} on host {tree.root}"
                )
        return self._readers.total_had(rank, version)

    def give(self, rank: int, chunk: WeightsChunk) -> None:
        """A rank is notified of a chunk."""
        chunk.given.add(rank)
        self._readers.gave(rank)

    def released(self, rank: int, source: int, version: int, index: int) -> list[Effect]:
        """A rank has copied a chunk."""
        return self.tree(source).released(rank, version, index)

    def skip(self, rank: int, version: int) -> list[Effect]:
        """A rank wants no more of a version, nor of older ones; also how it ends one that it has had."""
        return self._leave_behind(rank, version + 1)

    # ---- for messages

    def late_sources(self, version: int) -> list[SourceRank]:
        """Sources with something of a version missing here."""
        return [self.route.sources[number] for number in self._readers.late(version)]

    def explain(self, sources: Iterable[int] | None = None) -> list[str]:
        """What lies in some of the slots of some or all sources, and for whom."""
        trees = self._trees.values() if sources is None else [self._trees[source] for source in sources]
        return [str(chunk) for tree in trees for chunk in tree.chunks][:MAX_NAMED]

    def _closed(self, message: SourceClosed) -> list[Effect]:
        effects = self.tree(message.source).closed(message)
        self._readers.closed(message.version, message.source, message.num_chunks)
        return effects

    def _leave_behind(self, rank: int, version: int) -> list[Effect]:
        self._readers.leave_behind(rank, version)
        return [effect for tree in self._trees.values() for effect in tree.passed_over(rank, version)]
