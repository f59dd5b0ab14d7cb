"""Weights through the data buffers: from shared memory of the sources' hosts along trees to that of all who receive."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rljob_api.planning.weights import WeightFlow
from rljob_worker.weights.chunks import Received, write_tensors
from rljob_worker.weights.sides import Named, Receiver, Sender

Bytes = NDArray[np.uint8]


class Stream(Protocol):
    """One version on its way out, as the data buffer's client sees it."""

    @property
    def slot_bytes(self) -> int: ...

    def reserve(self, num_bytes: int) -> Bytes: ...

    def seal(self, table: bytes, num_bytes: int | None = None) -> None: ...


class Buffer(Protocol):
    """The part of the data buffer's client that weights use."""

    def sending(self, version: int, edge: str) -> AbstractContextManager[Any]:
        """A Stream."""
        ...

    def receive(self, version: int, edge: str) -> Generator[Any, None, None]:
        """Chunks with a `table` and `data`, which hold until the next is asked for."""
        ...


@dataclass(frozen=True)
class Buffers:
    """The transport: what a rank needs to send or to receive."""

    buffer: Buffer

    def sender(self, flow: WeightFlow, rank: int) -> Sender:
        return BufferEnd(self.buffer, flow.name)

    def receiver(self, flow: WeightFlow, group: str, rank: int) -> Receiver:
        return BufferEnd(self.buffer, flow.name)


@dataclass(frozen=True)
class BufferEnd:
    """One end of an edge: the client that the worker has anyway."""

    buffer: Buffer
    edge: str

    def open(self, meeting: str) -> None:
        """Data buffers know each other."""

    @contextmanager
    def sending(self, version: int) -> Iterator[_Out]:
        with self.buffer.sending(version, self.edge) as stream:
            yield _Out(stream)

    def receive(self, version: int) -> Generator[Received, None, None]:
        with closing(self.buffer.receive(version, self.edge)) as chunks:
            for chunk in chunks:
                yield _Chunk(chunk.table, tensor_over(chunk.data))

    def close(self) -> None:
        """The client is the worker's."""


@dataclass(frozen=True, slots=True)
class _Out:
    """Slots of shared memory."""

    stream: Stream

    @property
    def slot_bytes(self) -> int:
        return self.stream.slot_bytes

    def reserve(self, num_bytes: int) -> torch.Tensor:
        return torch.from_numpy(self.stream.reserve(num_bytes))

    def seal(self, table: bytes, num_bytes: int | None = None) -> None:
        self.stream.seal(table, num_bytes)

    def send(self, bucket: Iterable[Named]) -> int:
        return write_tensors(self, bucket)


@dataclass(frozen=True, slots=True)
class _Chunk:
    table: bytes
    data: torch.Tensor


def tensor_over(data: Bytes) -> torch.Tensor:
    """A tensor over memory that may be read-only, which torch warns of: it is only ever read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(data)
