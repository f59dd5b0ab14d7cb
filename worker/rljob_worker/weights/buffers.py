"""Weights through the data buffers: from shared memory of the sources' hosts along trees to that of all who receive."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rljob_api.planning.weights.flows import WeightFlow
from rljob_worker.weights.chunks import Received, pack_tensors
from rljob_worker.weights.endpoints import Named, Receiver, Sender

Bytes = NDArray[np.uint8]


class Stream(Protocol):
    """One version on its way out, as the data buffer's client sees it."""

    @property
    def slot_bytes(self) -> int: ...

    def reserve(self, num_bytes: int) -> Bytes: ...

    def seal(self, table: bytes, num_bytes: int | None = None) -> None: ...


class WeightsBuffer(Protocol):
    """The part of the data buffer's client that weights use."""

    def sending(self, version: int, edge: str) -> AbstractContextManager[Any]:
        """A Stream."""
        ...

    def release_version(self, version: int, edge: str) -> None:
        """Nobody will ask for this version any more."""
        ...

    def receive(self, version: int, edge: str) -> Generator[Any, None, None]:
        """Chunks with a `table` and `data`, which hold until the next is asked for."""
        ...


@dataclass(frozen=True)
class BufferTransport:
    """The transport: what a rank needs to send or to receive."""

    buffer: WeightsBuffer

    def sender(self, flow: WeightFlow, rank: int) -> Sender:
        return BufferSource(self.buffer, flow.name)

    def receiver(self, flow: WeightFlow, group: str, rank: int) -> Receiver:
        return BufferTarget(self.buffer, flow.name)


@dataclass(frozen=True)
class _End:
    """One end of an edge: the client that the worker has anyway."""

    buffer: WeightsBuffer
    edge: str

    def open(self, meeting: str) -> None:
        """Data buffers know each other."""

    def close(self) -> None:
        """The client is the worker's."""


@dataclass(frozen=True)
class BufferSource(_End):
    """Sends versions into the store of its host. Those that a checkpoint is written of are pinned meanwhile, by the
    thread that writes it."""

    _held: dict[int, list[BufferChunk]] = field(default_factory=dict)
    """By version: what lies in the store."""
    _keep: set[int] = field(default_factory=set)
    """What receivers may still ask for."""
    _pinned: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def sending(self, version: int, keep: Collection[int] = ()) -> Iterator[_Out]:
        with self._lock:
            self._keep.clear()
            self._keep.update([version, *keep])
            self._release_others()
            chunks = self._held.setdefault(version, [])
        with self.buffer.sending(version, self.edge) as stream:
            yield _Out(stream, chunks)

    def pin(self, version: int) -> Sequence[Received]:
        """The chunks of a version that is held; they stay until `unpin`."""
        with self._lock:
            self._pinned.add(version)
            return self._held[version]

    def unpin(self) -> None:
        """All that is pinned: a version that is being sent may wait for its room."""
        with self._lock:
            self._pinned.clear()
            self._release_others()

    def _release_others(self) -> None:
        for old in self._held.keys() - self._keep - self._pinned:
            del self._held[old]
            self.buffer.release_version(old, self.edge)


@dataclass(frozen=True)
class BufferTarget(_End):
    """Receives versions from its own host."""

    def receive(self, version: int) -> Generator[Received, None, None]:
        with closing(self.buffer.receive(version, self.edge)) as chunks:
            for chunk in chunks:
                yield BufferChunk(chunk.table, tensor_over(chunk.data))


@dataclass(frozen=True, slots=True)
class _Out:
    """Slots of shared memory."""

    stream: Stream
    chunks: list[BufferChunk]
    """Those that are sealed."""
    _room: list[torch.Tensor] = field(default_factory=list)
    """Slot that is being written, where one is."""
    _waits: list[float] = field(default_factory=list)
    """Seconds until each slot was free."""

    @property
    def room_seconds(self) -> float:
        return sum(self._waits)

    @property
    def slot_bytes(self) -> int:
        return self.stream.slot_bytes

    def reserve(self, num_bytes: int) -> torch.Tensor:
        started = time.perf_counter()
        self._room[:] = [torch.from_numpy(self.stream.reserve(num_bytes))]
        self._waits.append(time.perf_counter() - started)
        return self._room[0]

    def seal(self, table: bytes, num_bytes: int | None = None) -> None:
        self.stream.seal(table, num_bytes)
        self.chunks.append(BufferChunk(table, self._room.pop()[:num_bytes]))

    def send(self, bucket: Iterable[Named]) -> int:
        return pack_tensors(self, bucket)


@dataclass(frozen=True, slots=True)
class BufferChunk:
    """In shared memory, or read from a checkpoint."""

    table: bytes
    data: torch.Tensor


def tensor_over(data: Bytes) -> torch.Tensor:
    """A tensor over memory that may be read-only, which torch warns of: it is only ever read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(data)
