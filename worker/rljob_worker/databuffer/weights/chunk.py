"""A chunk on one host: where it lies, who must still take it, and its bytes as a stream with their checksum."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from rljob_worker.arrow_batch import numbers_of
from rljob_worker.databuffer.protocol.errors import Damaged
from rljob_worker.databuffer.protocol.peer_side import ChunkOffered, RecordStream
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.errors import PeerLost

Bytes = NDArray[np.uint8]

BATCH_BYTES = 4 << 20
_SCHEMA = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])


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


def chunk_checksum(data: Bytes, table: bytes) -> int:
    """XXH3 (64 bits) of a chunk and of the table that says what lies in it."""
    return xxhash.xxh3_64_intdigest(data.data, xxhash.xxh3_64_intdigest(table))


def stream_of(data: Bytes) -> RecordStream:
    """A chunk as batches of bytes that share its memory."""
    slices = (data[first : first + BATCH_BYTES] for first in range(0, len(data), BATCH_BYTES))
    return RecordStream(_SCHEMA, ((_record(item), b"") for item in slices))


def _record(data: Bytes) -> pa.RecordBatch:
    values = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([values], schema=_SCHEMA)


class Filling:
    """A slot, filled by the record batches of a stream. Raises PeerLost when there are fewer or more bytes than it
    has."""

    def __init__(self, slot: Bytes) -> None:
        self._slot = slot
        self._done = 0

    def take(self, record: pa.RecordBatch, checksum: bytes) -> None:
        if record.schema != _SCHEMA:
            raise Damaged("other columns came in the place of bytes")
        stop = self._done + record.num_rows
        if stop > len(self._slot):
            raise PeerLost(f"the stream has more than the {len(self._slot):,} bytes that were offered")
        try:
            self._slot[self._done : stop] = numbers_of(record.column(0), "uint8")
        except ValueError as error:  # fewer bytes than it says
            raise Damaged(f"a record batch of {record.num_rows:,} bytes came damaged: {error}") from error
        self._done = stop

    def end(self) -> None:
        """Nothing more comes."""
        if self._done < len(self._slot):
            raise PeerLost(f"the stream ended after {self._done:,} of {len(self._slot):,} bytes")
