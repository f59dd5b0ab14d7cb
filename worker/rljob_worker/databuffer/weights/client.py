"""What a worker sees of weights: slots of shared memory to write, chunks in shared memory to read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from rljob_worker.databuffer.protocol.worker_answers import ChunkLocation, Complete, WeightsOfWorker
from rljob_worker.databuffer.protocol.worker_calls import (
    CloseVersion,
    NextChunk,
    OpenVersion,
    ReleaseChunk,
    ReleaseVersion,
    ReserveChunk,
    SealChunk,
    SkipVersion,
    WaitingCall,
    WorkerCall,
)
from rljob_worker.databuffer.rows.byte_stream import Bytes, chunk_checksum


class BufferCaller(Protocol):
    """The data buffer of this worker's host. Both raise the errors of the data buffer under their own class."""

    def call(self, request: WorkerCall) -> Any:
        """The answer to a request."""

    def poll(self, request: Callable[[float], WaitingCall], seconds: float) -> Any:
        """The answer to a request that waits; asked again, with the seconds waited so far, while it is `NotYet`."""


@dataclass(frozen=True, slots=True)
class ReceivedChunk:
    """A chunk in shared memory."""

    source: int
    index: int
    table: bytes
    """What its source says of it."""
    data: Bytes
    """uint8 [num_bytes], read-only; it holds until the next chunk is asked for."""


class SendingStream:
    """One version that this worker sends its part of.

    with client.sending(version, edge) as stream:
        room = stream.reserve(num_bytes)      # blocks while all slots are read
        room[:] = ...
        stream.seal(table)                    # sent from now on
    """

    def __init__(
        self, own: BufferCaller, memory: Bytes, edge: str, version: int, slot_bytes: int, seconds: float
    ) -> None:
        self.slot_bytes = slot_bytes
        """Longest chunk."""
        self.num_bytes = 0
        """Sealed so far."""
        self._own = own
        self._memory = memory
        self._edge = edge
        self._version = version
        self._seconds = seconds
        self._offset = -1
        self._room = memory[:0]

    def reserve(self, num_bytes: int) -> Bytes:
        """Memory of the next chunk, uint8 [num_bytes]. Raises DeadlineExceeded naming who keeps the slots."""
        assert num_bytes <= self.slot_bytes, f"{num_bytes} bytes in a slot of {self.slot_bytes}"
        assert self._offset < 0, "the chunk before is not sealed"
        self._offset = self._own.poll(self._ask, self._seconds).offset
        self._room = self._memory[self._offset : self._offset + num_bytes]
        return self._room

    def seal(self, table: bytes, num_bytes: int | None = None) -> None:
        """The chunk is written, or only its first `num_bytes`."""
        data = self._room[:num_bytes]
        self._own.call(
            SealChunk(
                edge=self._edge,
                version=self._version,
                offset=self._offset,
                num_bytes=len(data),
                table=table,
                checksum=chunk_checksum(data, table),
            )
        )
        self.num_bytes += len(data)
        self._offset = -1

    def _ask(self, waited: float) -> WaitingCall:
        return ReserveChunk(edge=self._edge, version=self._version, waited=waited, seconds=self._seconds)


class WeightsClient:
    """One worker's ends of the edges of weights."""

    def __init__(
        self,
        own: BufferCaller,
        ends: Mapping[str, WeightsOfWorker],
        deadline_seconds: float,
        *,
        writable: Bytes,
        readable: Bytes,
    ) -> None:
        """ends, deadline_seconds: as in `Welcome`; the longest wait for a slot or a chunk.

        writable, readable: the arena mapped in both ways.
        """
        self._own = own
        self._ends = ends
        self._deadline_seconds = deadline_seconds
        self._writable = writable
        self._readable = readable

    @contextmanager
    def sending(self, version: int, edge: str) -> Iterator[SendingStream]:
        """Send this source's part of a version. OutOfOrder unless versions grow, and while as many are held as the plan
        has: one must be released first.

        It is complete when the block ends without an exception.
        """
        end = self._ends[edge]
        assert end.source is not None, f"this worker is not a source of {edge}"
        self._own.call(OpenVersion(edge=edge, version=version))
        yield SendingStream(self._own, self._writable, edge, version, end.slot_bytes, self._deadline_seconds)
        self._own.call(CloseVersion(edge=edge, version=version))

    def release_version(self, version: int, edge: str) -> None:
        """Nobody will ask this source for `version` any more: it is kept no longer than hosts that are on their way to
        have it need it."""
        self._own.call(ReleaseVersion(edge=edge, version=version))

    def receive(self, version: int, edge: str) -> Generator[ReceivedChunk, None, None]:
        """The chunks of all sources of a version, in any order. To close it early is to skip the rest.

        Raises DeadlineExceeded naming the sources that are late.
        """
        try:
            while not isinstance(result := self._next(version, edge), Complete):
                data = self._readable[result.offset : result.offset + result.num_bytes]
                yield ReceivedChunk(result.source, result.index, result.table, data)
                self._own.call(ReleaseChunk(edge=edge, version=version, source=result.source, index=result.index))
        except GeneratorExit:
            self._own.call(SkipVersion(edge=edge, version=version))
            raise

    def _next(self, version: int, edge: str) -> ChunkLocation | Complete:
        def ask(waited: float) -> WaitingCall:
            return NextChunk(edge=edge, version=version, waited=waited, seconds=self._deadline_seconds)

        answer: ChunkLocation | Complete = self._own.poll(ask, self._deadline_seconds)
        return answer
