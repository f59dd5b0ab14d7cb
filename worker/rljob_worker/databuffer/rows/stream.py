"""Rows of sealed parts as a stream of pieces of bounded size: their values as they lie, column by column."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_worker.batch import Column
from rljob_worker.databuffer.protocol.codec import encode, read_packed
from rljob_worker.databuffer.protocol.peer_side import PieceHead
from rljob_worker.databuffer.protocol.streams import Held
from rljob_worker.databuffer.rows.arrangement import Header
from rljob_worker.databuffer.rows.segment import Views
from rljob_worker.gather import Runs, Stretches, Taking, bytes_of

Int64 = NDArray[np.int64]

PIECE_BYTES = 16 << 20
"""What is copied together at either end, for rows in many small places."""
SMALLEST_PIECE_BYTES = 1 << 19
ALL_PIECES_BYTES = 64 << 20
"""What the pieces of all sources of one share may take in private memory."""
MESSAGE_BYTES = 64 << 20
FEW_BYTES = 1 << 16
"""So few bytes of rows travel with their offer: a stream of their own would take longer."""
ALL_FEW_BYTES = 8 << 20
"""What the rows in the offers of all sources of one share may take in private memory."""

Selection = tuple[Views, Int64]
"""A part and the positions of the rows that are wanted."""


def piece_bytes_for(num_sources: int) -> int:
    """Size of the pieces when so many sources send at once."""
    return max(SMALLEST_PIECE_BYTES, min(PIECE_BYTES, ALL_PIECES_BYTES // max(1, num_sources)))


def few_bytes_for(num_sources: int, few_bytes: int = FEW_BYTES) -> int:
    """What rows may have to travel with their offer when there are so many sources."""
    return min(few_bytes, ALL_FEW_BYTES // max(1, num_sources))


def header_of(selections: Sequence[Selection]) -> Header:
    """What is in a stream of these rows, in its order. Parts without rows only tell the types, if nobody else does."""
    headers = [Header.of(views, rows) for views, rows in selections]
    return Header.concat([header for header in headers if len(header.index)] or headers[:1])


def stream(
    selections: Sequence[Selection], gathered: Callable[[float], None], piece_bytes: int = PIECE_BYTES
) -> Iterator[Held]:
    """The rows, in the order of their header."""
    for views, rows in selections:
        for piece in pieces(views, rows, piece_bytes):
            start = time.perf_counter()
            portion = piece.portion()
            gathered(time.perf_counter() - start)
            yield portion


def packed(selections: Sequence[Selection]) -> bytes:
    """The same stream as bytes: for few rows."""
    portions = stream(selections, lambda seconds: None)
    return encode([(portion.head, b"".join(portion.places)) for portion in portions])


def unpacked(data: bytes) -> list[Held]:
    """The other way round. Raises Malformed."""
    return [Held(head, [memoryview(values)]) for head, values in read_packed(data)]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Some rows of a part in one portion: by row, and the groups whose own columns come with these rows."""

    views: Views
    by_row: Runs
    by_group: Runs

    def __len__(self) -> int:
        return len(self.by_row.source)

    def portion(self) -> Held:
        """The values where they lie, but for those in many small places, which are copied together.

        What is stored per group is there only if no earlier piece has it.
        """
        known: list[tuple[Column, Taking]] = []
        columns = [self._places(self.views.columns[name], known) for name in sorted(self.views.columns)]
        sizes = tuple(sum(map(len, places)) for places in columns)
        head = PieceHead(self.views.index.row_ids[self.by_row.source].tobytes(), sizes)
        return Held(encode(head), list(itertools.chain.from_iterable(columns)))

    def _places(self, column: Column, known: list[tuple[Column, Taking]]) -> list[memoryview]:
        """Most columns have rows as long as another's: what is worked out for one is right for both."""
        runs = self.by_group if column.per_group else self.by_row
        if column.offsets is None:
            places = Stretches.of(None, None, runs).sources(column.values)
            return [bytes_of(column.values[runs.source])] if places is None else places
        taking = next((each for other, each in known if other.has_rows_like(column)), None)
        if taking is None:
            taking = Taking(column.offsets, runs, len(self))
            known.append((column, taking))
        return taking.places(column.values)


def pieces(views: Views, rows: Int64, piece_bytes: int = PIECE_BYTES) -> list[Piece]:
    """The rows at `rows` cut so that a piece has at most `piece_bytes`, or is one row."""
    groups = views.index.group_runs(rows)
    return [
        Piece(views, Runs.taking(rows[first:stop]), groups.within(first, stop))
        for first, stop in _cuts(row_bytes(views, rows), piece_bytes)
    ]


def _cuts(sizes: Int64, piece_bytes: int) -> list[tuple[int, int]]:
    """First and stop of every piece."""
    ends = np.cumsum(sizes)
    cuts = [0]
    while cuts[-1] < len(sizes):
        base = ends[cuts[-1] - 1] if cuts[-1] else 0
        stop = int(np.searchsorted(ends, base + piece_bytes, side="right"))
        cuts.append(max(stop, cuts[-1] + 1))
    return list(itertools.pairwise(cuts))


def row_bytes(views: Views, rows: Int64 | None = None) -> Int64:
    """Bytes of each of the rows at `rows` (None: of all) when these are sent together, [rows]."""
    return Header.of(views, np.arange(len(views.index)) if rows is None else rows).row_bytes
