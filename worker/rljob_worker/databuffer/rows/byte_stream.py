"""Bytes of an arena as a stream of record batches, with one checksum over all of them and over what describes them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from rljob_worker.batch.arrow import numbers_of
from rljob_worker.databuffer.protocol.errors import Damaged
from rljob_worker.databuffer.protocol.peer_side import RecordStream
from rljob_worker.errors import PeerLost

Bytes = NDArray[np.uint8]

BATCH_BYTES = 2 << 20
_SCHEMA = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])


def chunk_checksum(data: Bytes, table: bytes) -> int:
    """XXH3 (64 bits) of bytes and of the table that says what lies in them."""
    digest = _begun_with(table)
    digest.update(data.data)
    return int(digest.intdigest())


def _begun_with(table: bytes) -> xxhash.xxh3_64:
    return xxhash.xxh3_64(seed=xxhash.xxh3_64_intdigest(table))


def stream_of(data: Bytes) -> RecordStream:
    """Batches of bytes that share their memory."""
    slices = (data[first : first + BATCH_BYTES] for first in range(0, len(data), BATCH_BYTES))
    return RecordStream(_SCHEMA, ((_record(item), b"") for item in slices))


def _record(data: Bytes) -> pa.RecordBatch:
    values = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([values], schema=_SCHEMA)


class Filling:
    """A slot, filled by the record batches of a stream. Raises PeerLost when there are fewer or more bytes than it
    has."""

    def __init__(self, slot: Bytes, table: bytes) -> None:
        """table: what lies in the slot, which the checksum covers."""
        self._slot = slot
        self._done = 0
        self._digest = _begun_with(table)

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
        # now, while they are in the processor's caches
        self._digest.update(self._slot[self._done : stop].data)
        self._done = stop

    def end(self) -> int:
        """Nothing more comes; the `chunk_checksum` of what has."""
        if self._done < len(self._slot):
            raise PeerLost(f"the stream ended after {self._done:,} of {len(self._slot):,} bytes")
        return int(self._digest.intdigest())
