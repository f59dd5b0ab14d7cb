"""Layouts: which producer holds which row; and, once all are known, which share every row belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rljob_worker.batch.row_index import RowIndex
from rljob_worker.databuffer.protocol.errors import Malformed, require

Int64 = NDArray[np.int64]

PLAIN_ROWS = 512
"""So few, 16 KiB, travel as they are. More go to every child of every level: squeezing them takes less than sending."""


@dataclass(frozen=True, slots=True, eq=False)
class ProducerLayout:
    """Rows of some parts: parts int64 [rows], ascending, and the index of as many rows; within a part rows ascend."""

    parts: Int64
    index: RowIndex

    @staticmethod
    def of_part(part: int, index: RowIndex) -> ProducerLayout:
        return ProducerLayout(np.full(len(index), part, np.int64), index)

    @staticmethod
    def merge(layouts: Sequence[ProducerLayout]) -> ProducerLayout:
        """All rows; parts in ascending order, so that the result does not depend on who arrived first."""
        parts = np.concatenate([layout.parts for layout in layouts])
        order = np.argsort(parts, kind="stable")
        return ProducerLayout(parts[order], RowIndex.concat([layout.index for layout in layouts]).take(order))

    def to_bytes(self) -> bytes:
        """Number of rows, then parts and index, int64 [4, rows]; many rows compressed: ids that count up leave a
        sixth."""
        num_rows = len(self.parts)
        table = b"".join(values.tobytes() for values in (self.parts, *self.index.columns().values()))
        if num_rows > PLAIN_ROWS:
            table = pa.compress(table, "zstd", asbytes=True)
        return num_rows.to_bytes(8, "little") + table

    @staticmethod
    def from_bytes(data: bytes) -> ProducerLayout:
        """Raises Malformed."""
        num_rows, table = int.from_bytes(data[:8], "little"), data[8:]
        require(len(data) >= 8, f"{len(data)} bytes are not a layout")
        try:
            if num_rows > PLAIN_ROWS:
                table = pa.decompress(table, 32 * num_rows, "zstd", asbytes=True)
            parts, *index = np.frombuffer(table, np.int64).reshape(4, num_rows)
        except (pa.ArrowException, MemoryError, OSError, OverflowError, ValueError) as error:
            raise Malformed(f"{len(data):,} bytes are not a layout: {error}") from error
        return ProducerLayout(parts, RowIndex(*index))


def merge_layouts(payloads: Sequence[bytes]) -> bytes:
    """What a host of the tree does with the layouts of its own parts and of those below it."""
    return ProducerLayout.merge([ProducerLayout.from_bytes(payload) for payload in payloads]).to_bytes()


@dataclass(frozen=True, eq=False)
class Assignment:
    """A complete layout, and the share of every row of it."""

    layout: ProducerLayout
    shares: Int64
    num_shares: int

    def shares_of_part(self, part: int) -> Int64:
        """Share of every row of one part, in the part's row order."""
        first, last = np.searchsorted(self.layout.parts, [part, part + 1])
        return self.shares[first:last]

    def of_share(self, share: int) -> ProducerLayout:
        """The rows of one share."""
        rows = np.flatnonzero(self.shares == share)
        return ProducerLayout(self.layout.parts[rows], self.layout.index.take(rows))

    @cached_property
    def _pairs(self) -> Int64:
        """Distinct (part, share) of all rows, [pairs, 2], ascending."""
        keys = np.unique(self.layout.parts * self.num_shares + self.shares)
        return np.stack(np.divmod(keys, self.num_shares), axis=1)

    @cached_property
    def _empty(self) -> frozenset[int]:
        """Shares without a row: part 0 feeds them, for somebody must tell the columns' types."""
        return frozenset(range(self.num_shares)) - set(self._pairs[:, 1].tolist())

    def parts_of(self, share: int) -> tuple[int, ...]:
        """Parts that feed a share."""
        pairs = self._pairs[self._pairs[:, 1] == share, 0].tolist()
        return tuple(pairs) or (0,)

    def shares_fed_by(self, part: int) -> tuple[int, ...]:
        """The other way round."""
        fed = set(self._pairs[self._pairs[:, 0] == part, 1].tolist())
        return tuple(sorted(fed | self._empty if part == 0 else fed))
