"""The table that travels between stages: rows in `row_id` order, columns that may be ragged, nothing padded.

    Batch of two rows, responses of two and one tokens:
        row_ids    [16, 17]        group_ids [2, 2]        num_tokens [9, 8]   (prompt + response)
        response_ids   values [11, 12, 13]  offsets [0, 2, 3]
        rewards        values [1.0, 0.0]    offsets None

Only numpy: the data buffer, rewards and data loading read it without torch; engines wrap the arrays without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One value per row (`offsets` None) or a run of values per row (ragged).

    values: [rows, ...] fixed, [offsets[-1]] ragged.   offsets: int64 [rows + 1] or None.
    dtype: what the values mean: a numpy name, "bfloat16" (values are uint16) or "utf8" (ragged uint8).
    """

    values: Array
    offsets: Indices | None
    dtype: str

    @staticmethod
    def fixed(values: ArrayLike, dtype: str | None = None) -> Column:
        """One value per row."""
        array = np.ascontiguousarray(values)
        return Column(array, None, dtype or array.dtype.name)

    @staticmethod
    def ragged(rows: Sequence[ArrayLike], dtype: str = "int64") -> Column:
        """One run of values per row; bfloat16 rows come as uint16."""
        arrays = [np.asarray(row, dtype=_storage(dtype)) for row in rows]
        values = np.concatenate(arrays) if arrays else np.empty(0, _storage(dtype))
        return Column(values, offsets_of([len(array) for array in arrays]), dtype)

    @staticmethod
    def from_lengths(values: ArrayLike, lengths: ArrayLike, dtype: str | None = None) -> Column:
        """Flat values cut into runs of the given lengths."""
        array = np.ascontiguousarray(values)
        column = Column(array, offsets_of(lengths), dtype or array.dtype.name)
        assert column.offsets is not None and column.offsets[-1] == len(array), "lengths do not add up to the values"
        return column

    @staticmethod
    def strings(rows: Iterable[str]) -> Column:
        """Text, kept as ragged UTF-8 bytes."""
        encoded = [row.encode() for row in rows]
        values = np.frombuffer(b"".join(encoded), np.uint8)
        return Column(values, offsets_of([len(row) for row in encoded]), "utf8")

    @staticmethod
    def concat(columns: Sequence[Column]) -> Column:
        """Rows of several columns of one kind, in the given order."""
        first = columns[0]
        assert all(c.dtype == first.dtype and c.is_ragged == first.is_ragged for c in columns), (
            "columns of several kinds"
        )
        values = np.concatenate([column.values for column in columns])
        if not first.is_ragged:
            return Column(values, None, first.dtype)
        return Column(values, offsets_of(np.concatenate([column.lengths for column in columns])), first.dtype)

    @property
    def is_ragged(self) -> bool:
        return self.offsets is not None

    @property
    def num_rows(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    @property
    def lengths(self) -> Indices:
        """Values per row, [rows]; only ragged columns have lengths."""
        assert self.offsets is not None, "a fixed column has no lengths"
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.offsets is None else self.offsets.nbytes)

    def row(self, index: int) -> Any:
        """The value, run of values, or text of one row."""
        if self.offsets is None:
            return self.values[index]
        run = self.values[self.offsets[index] : self.offsets[index + 1]]
        return bytes(run).decode() if self.dtype == "utf8" else run

    def take(self, indices: Indices) -> Column:
        """The rows at `indices`, in that order; one gather, no loop over rows."""
        if self.offsets is None:
            return Column(self.values[indices], None, self.dtype)
        lengths = self.lengths[indices]
        offsets = offsets_of(lengths)
        source = np.repeat(self.offsets[:-1][indices] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Column(self.values[source], offsets, self.dtype)

    def to_list(self) -> list[Any]:
        return [self.row(index) for index in range(self.num_rows)]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of one step that one process holds, ascending by `row_id`.

    row_ids, group_ids, num_tokens: int64 [rows], on every edge; num_tokens is prompt plus response, 0 before rollout.
    """

    row_ids: Indices
    group_ids: Indices
    num_tokens: Indices
    columns: Mapping[str, Column]

    def __post_init__(self) -> None:
        rows = len(self.row_ids)
        assert len(self.group_ids) == rows and len(self.num_tokens) == rows, "index columns of different lengths"
        assert rows < 2 or bool((np.diff(self.row_ids) > 0).all()), "rows must ascend by row_id, none twice"
        for name, column in self.columns.items():
            assert column.num_rows == rows, f"column {name} has {column.num_rows} rows, the batch {rows}"

    @staticmethod
    def build(
        row_ids: ArrayLike, group_ids: ArrayLike, columns: Mapping[str, Column], num_tokens: ArrayLike | None = None
    ) -> Batch:
        """A batch from plain sequences."""
        ids = np.asarray(row_ids, np.int64)
        tokens = np.zeros(len(ids), np.int64) if num_tokens is None else np.asarray(num_tokens, np.int64)
        return Batch(ids, np.asarray(group_ids, np.int64), tokens, dict(columns))

    @staticmethod
    def concat(parts: Sequence[Batch]) -> Batch:
        """Rows of several batches with the same columns, back in row_id order."""
        if len(parts) == 1:
            return parts[0]
        row_ids = np.concatenate([part.row_ids for part in parts])
        merged = _Unordered(
            row_ids,
            np.concatenate([part.group_ids for part in parts]),
            np.concatenate([part.num_tokens for part in parts]),
            {name: Column.concat([part.columns[name] for part in parts]) for name in parts[0].columns},
        )
        return merged.ordered()

    @staticmethod
    def join(parts: Sequence[Batch]) -> Batch:
        """Columns of several batches that hold the same rows; num_tokens is the largest any of them knows."""
        first = parts[0]
        columns: dict[str, Column] = {}
        num_tokens = first.num_tokens
        for part in parts:
            assert np.array_equal(part.row_ids, first.row_ids), "batches with different rows cannot be joined"
            columns.update(part.columns)
            num_tokens = np.maximum(num_tokens, part.num_tokens)
        return Batch(first.row_ids, first.group_ids, num_tokens, columns)

    def __len__(self) -> int:
        return len(self.row_ids)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Column:
        try:
            return self.columns[name]
        except KeyError:
            raise KeyError(f"no column {name!r}; this batch has {sorted(self.columns)}") from None

    @property
    def nbytes(self) -> int:
        return 3 * self.row_ids.nbytes + sum(column.nbytes for column in self.columns.values())

    def select(self, names: Iterable[str]) -> Batch:
        return Batch(self.row_ids, self.group_ids, self.num_tokens, {name: self[name] for name in names})

    def with_columns(self, columns: Mapping[str, Column]) -> Batch:
        return Batch(self.row_ids, self.group_ids, self.num_tokens, {**self.columns, **columns})

    def rename(self, names: Mapping[str, str]) -> Batch:
        """Columns under new names: `{old: new}`; others keep theirs."""
        columns = {names.get(name, name): column for name, column in self.columns.items()}
        return Batch(self.row_ids, self.group_ids, self.num_tokens, columns)

    def take(self, indices: ArrayLike) -> Batch:
        """The rows at ascending positions `indices`."""
        at = np.asarray(indices, np.int64)
        columns = {name: column.take(at) for name, column in self.columns.items()}
        return Batch(self.row_ids[at], self.group_ids[at], self.num_tokens[at], columns)


@dataclass(frozen=True, slots=True, eq=False)
class _Unordered:
    """Rows as they arrived."""

    row_ids: Indices
    group_ids: Indices
    num_tokens: Indices
    columns: Mapping[str, Column]

    def ordered(self) -> Batch:
        order = np.argsort(self.row_ids, kind="stable")
        if np.array_equal(order, np.arange(len(order))):
            return Batch(self.row_ids, self.group_ids, self.num_tokens, self.columns)
        columns = {name: column.take(order) for name, column in self.columns.items()}
        return Batch(self.row_ids[order], self.group_ids[order], self.num_tokens[order], columns)


def offsets_of(lengths: ArrayLike) -> Indices:
    """Where each run starts: int64 [rows + 1], first 0, last the number of values."""
    lengths = np.asarray(lengths, np.int64)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _storage(dtype: str) -> str:
    return {"bfloat16": "uint16", "utf8": "uint8"}.get(dtype, dtype)
