"""The bytes of a chunk: as a stream of Arrow batches, into a slot, and their checksum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from rljob_worker.errors import PeerLost

Bytes = NDArray[np.uint8]

PIECE_BYTES = 1 << 20
SCHEMA = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])


def checksum_of(data: Bytes, table: bytes) -> int:
    """XXH3 (64 bits) of a chunk and of the table that says what lies in it."""
    return xxhash.xxh3_64_intdigest(data.data, xxhash.xxh3_64_intdigest(table))


def pieces_of(data: Bytes) -> Iterator[pa.RecordBatch]:
    """A chunk as batches that share its memory."""
    for start in range(0, len(data), PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        values = pa.Array.from_buffers(pa.uint8(), len(piece), [None, pa.py_buffer(piece)])
        yield pa.RecordBatch.from_arrays([values], schema=SCHEMA)


def copy_into(room: Bytes, pieces: Iterable[pa.RecordBatch]) -> None:
    """Fill a slot. Raises PeerLost when there are fewer or more bytes than it has, or something else."""
    at = 0
    for piece in pieces:
        if piece.schema != SCHEMA:
            raise PeerLost(f"the stream has no bytes of a chunk, but {piece.schema.names} of {piece.schema.types}")
        data = piece.column(0).to_numpy()
        if at + len(data) > len(room):
            raise PeerLost(f"the stream has more than the {len(room):,} bytes that were offered")
        room[at : at + len(data)] = data
        at += len(data)
    if at < len(room):
        raise PeerLost(f"the stream ended after {at:,} of {len(room):,} bytes")
