"""Broadcast edges: version-stamped, checksummed chunks relayed along a tree of hosts in a bounded window.

    source rank ─▶ arena of its host ─┬▶ ranks of the same host
                                      └▶ child hosts ─┬▶ their ranks
                                                      └▶ their children …

A chunk leaves a host's arena when all its ranks and children have it. While WINDOW_CHUNKS are held, or the arena is
full, nothing more is taken in, and that stops the host above: the slowest reader sets the pace, memory stays bounded.
Here is what one host holds; `relay` moves it between hosts.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rljob_worker.databuffer.faults import OutOfOrder
from rljob_worker.databuffer.hosts import FAN_OUT, Host, Worker, tree_children, tree_parent
from rljob_worker.databuffer.routing import BroadcastRoute
from rljob_worker.databuffer.rows.segment import Contents
from rljob_worker.databuffer.store import Item, Reader, Segment, Store
from rljob_worker.databuffer.wire import POLL_SECONDS
from rljob_worker.errors import DeadlineExceeded, RLJobError

WINDOW_CHUNKS = 8
REMEMBERED_VERSIONS = 8


@dataclass(slots=True, eq=False)
class Version:
    """One version of one edge on this host."""

    number: int
    chunks: dict[int, Segment] = field(default_factory=dict)
    num_chunks: int | None = None
    """Known once the source has closed the version."""
    skipped: set[Reader] = field(default_factory=set)
    """Readers that want no more of it."""
    failure: RLJobError | None = None


class Broadcasts:
    """Versions of all broadcast edges on one host."""

    def __init__(self, here: Host, routes: dict[str, BroadcastRoute], store: Store, fan_out: int = FAN_OUT) -> None:
        self._here = here
        self._routes = routes
        self._store = store
        self._fan_out = fan_out
        self._versions: dict[str, dict[int, Version]] = {name: {} for name in routes}
        self._newest = dict.fromkeys(routes, -1)

    # ---- the tree

    def children(self, edge: str) -> Sequence[Host]:
        hosts = self._routes[edge].hosts
        return [hosts[child] for child in tree_children(hosts.index(self._here), len(hosts), self._fan_out)]

    def parent(self, edge: str) -> Host:
        hosts = self._routes[edge].hosts
        position = tree_parent(hosts.index(self._here), self._fan_out)
        assert position is not None, f"{self._here} is the root of {edge}"
        return hosts[position]

    # ---- taking in

    def open(self, edge: str, version: int) -> None:
        """A new version begins. Raises OutOfOrder unless it is newer than all before."""
        with self._store.change():
            if version <= self._newest[edge]:
                raise OutOfOrder(f"version {version} of {edge} after version {self._newest[edge]}: versions only grow")
            self._newest[edge] = version
            versions = self._versions[edge]
            versions[version] = Version(version)
            for old in sorted(versions)[:-REMEMBERED_VERSIONS]:
                del versions[old]

    def num_sealed(self, edge: str, version: int) -> int:
        """Chunks that this host has had."""
        with self._store.changed:
            return len(self._versions[edge][version].chunks)

    def has(self, edge: str, version: int) -> bool:
        """Whether a version has begun here."""
        with self._store.changed:
            return version in self._versions[edge]

    def reserve(self, edge: str, version: int, index: int, num_bytes: int, seconds: float) -> Segment | None:
        """Room for the next chunk within the window, or None after `seconds`."""
        item = Item(edge, version, "chunk", index)
        if num_bytes > self._store.allocator.capacity:
            raise DeadlineExceeded(self.explain_full(item, num_bytes, 0.0))
        return self._store.wait(lambda: self._try_reserve(item, num_bytes), seconds)

    def explain_full(self, item: Item, num_bytes: int, seconds: float) -> str:
        """Why a chunk found no room: names the readers that are late."""
        return self._store.explain_full(item, num_bytes, seconds)

    def seal(self, edge: str, version: int, index: int, segment: Segment, contents: Contents, checksum: int) -> None:
        """A chunk is complete: local ranks and children may read it."""
        segment.contents, segment.checksum = contents, checksum
        readers = [Reader.rank(rank) for rank in self._routes[edge].readers(self._here)]
        readers += [Reader(str(child)) for child in self.children(edge)]
        with self._store.change():
            state = self._versions[edge][version]
            state.chunks[index] = segment
            self._store.set_readers(segment, [reader for reader in readers if reader not in state.skipped])

    def finish(self, edge: str, version: int, num_chunks: int) -> None:
        """The version is complete."""
        with self._store.change():
            self._versions[edge][version].num_chunks = num_chunks

    def fail(self, edge: str, version: int, error: RLJobError) -> None:
        """Whoever waits for this version gets `error`."""
        with self._store.change():
            state = self._versions[edge].get(version)
            if state is not None and state.failure is None:
                state.failure = error

    # ---- giving out

    def chunk(self, edge: str, version: int, index: int, seconds: float) -> Segment | int | None:
        """A chunk; the number of chunks when there are no more; None after `seconds`."""
        found = self._store.wait(partial(self._look, edge, version, index), seconds)
        if isinstance(found, RLJobError):
            raise found
        return found

    def chunks(self, edge: str, version: int, first: int, cancelled: Callable[[], bool]) -> Iterator[Segment | int]:
        """Chunks in order from `first`, as they come, then their number."""
        index = first
        while not cancelled():
            found = self.chunk(edge, version, index, POLL_SECONDS)
            if found is not None:
                yield found
                index += 1
            if isinstance(found, int):
                return

    def release(self, edge: str, version: int, index: int, reader: Reader) -> None:
        """One reader is done with one chunk."""
        with self._store.changed:
            state = self._versions[edge].get(version)
            segment = None if state is None else state.chunks.get(index)
        if segment is not None:
            self._store.release(segment, reader)

    def skip(self, edge: str, version: int, reader: Reader) -> None:
        """A reader wants no more of a version."""
        with self._store.change():
            state = self._versions[edge].get(version)
            if state is None:
                return
            state.skipped.add(reader)
            for segment in state.chunks.values():
                self._store.release(segment, reader)

    def drained(self, worker: Worker, seconds: float) -> bool:
        """Whether everything a worker sent has been read; waits for it."""
        mine = {name for name, route in self._routes.items() if route.source == worker}
        return self._store.wait(lambda: None if any(map(self._held, mine)) else True, seconds) is True

    def _try_reserve(self, item: Item, num_bytes: int) -> Segment | None:
        return self._store.try_reserve(item, num_bytes) if self._held(item.edge) < WINDOW_CHUNKS else None

    def _held(self, edge: str) -> int:
        return sum(s.item.edge == edge and s.item.what == "chunk" for s in self._store.segments())

    def _look(self, edge: str, version: int, index: int) -> Segment | int | RLJobError | None:
        state = self._versions[edge].get(version)
        if state is None:
            if version <= self._newest[edge]:
                return OutOfOrder(f"version {version} of {edge} is over: version {self._newest[edge]} is here")
            return None
        if state.failure is not None:
            return state.failure
        return state.chunks.get(index, state.num_chunks)


def checksum_of(data: NDArray[np.uint8]) -> int:
    """CRC-32 of a chunk."""
    return zlib.crc32(data.data)
