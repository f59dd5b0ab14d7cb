"""The bytes of a chunk: as a stream, into a slot, and their checksum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xxhash
from numpy.typing import NDArray

from rljob_worker.databuffer.protocol.streams import Held, Portion
from rljob_worker.errors import PeerLost

Bytes = NDArray[np.uint8]


def checksum_of(data: Bytes, table: bytes) -> int:
    """XXH3 (64 bits) of a chunk and of the table that says what lies in it."""
    return xxhash.xxh3_64_intdigest(data.data, xxhash.xxh3_64_intdigest(table))


def portions_of(data: Bytes) -> Iterator[Held]:
    """A chunk as a stream that shares its memory."""
    yield Held(b"", [data.data])


class Filling:
    """A slot, filled by the portions of a stream. Raises PeerLost when there are fewer or more bytes than it has."""

    def __init__(self, slot: Bytes) -> None:
        self._slot = slot
        self._done = 0

    def take(self, portion: Portion) -> None:
        stop = self._done + portion.num_bytes
        if stop > len(self._slot):
            raise PeerLost(f"the stream has more than the {len(self._slot):,} bytes that were offered")
        portion.into([self._slot[self._done : stop].data])
        self._done = stop

    def end(self) -> None:
        """Nothing more comes."""
        if self._done < len(self._slot):
            raise PeerLost(f"the stream ended after {self._done:,} of {len(self._slot):,} bytes")
