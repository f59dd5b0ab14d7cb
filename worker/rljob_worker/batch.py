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

from rljob_worker.gather import Runs, copy_rows, offsets_of, take_rows
from rljob_worker.row_index import RowIndex

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
        ends = np.cumsum([column.num_rows for column in columns])
        return Column.merge(columns, np.split(np.arange(ends[-1]), ends[:-1]))

    @staticmethod
    def merge(columns: Sequence[Column], targets: Sequence[Indices]) -> Column:
        """Rows of several columns of one kind, each at its row of the result: row i of columns[k] is targets[k][i]."""
        first = columns[0]
        assert all(c.dtype == first.dtype and c.is_ragged == first.is_ragged for c in columns), (
            "columns of several kinds"
        )
        num_values, offsets = sum(len(column.values) for column in columns), None
        if first.is_ragged:
            lengths = np.empty(sum(column.num_rows for column in columns), np.int64)
            for column, target in zip(columns, targets, strict=True):
                lengths[target] = column.lengths
            offsets = offsets_of(lengths)
        values = np.empty((num_values, *first.values.shape[1:]), first.values.dtype)
        for column, target in zip(columns, targets, strict=True):
            runs = Runs.of(np.arange(len(target)), target)
            copy_rows(values, offsets, column.values, column.offsets, runs)
        return Column(values, offsets, first.dtype)

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
        """The rows at `indices`, in that order, in new memory."""
        return self.gather(Runs.taking(indices))

    def gather(self, runs: Runs) -> Column:
        """The rows at `runs.source` in new memory; columns of one batch share their runs."""
        return Column(*take_rows(self.values, self.offsets, runs), self.dtype)

    def slice(self, first: int, stop: int) -> Column:
        """Rows [first, stop) over the same memory."""
        if self.offsets is None:
            return Column(self.values[first:stop], None, self.dtype)
        offsets = self.offsets[first : stop + 1]
        return Column(self.values[offsets[0] : offsets[-1]], offsets - offsets[0], self.dtype)

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
    def of(index: RowIndex, columns: Mapping[str, Column]) -> Batch:
        """A batch over an index in row_id order."""
        return Batch(index.row_ids, index.group_ids, index.num_tokens, columns)

    @staticmethod
    def concat(parts: Sequence[Batch]) -> Batch:
        """Rows of several batches with the same columns, back in row_id order."""
        if len(parts) == 1:
            return parts[0]
        index = RowIndex.concat([part.index for part in parts])
        order = index.order()
        targets = RowIndex.targets_of(order, [len(part) for part in parts])
        columns = {name: Column.merge([part.columns[name] for part in parts], targets) for name in parts[0].columns}
        return Batch.of(index.take(order), columns)

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
    def index(self) -> RowIndex:
        return RowIndex(self.row_ids, self.group_ids, self.num_tokens)

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
        """The rows at ascending positions `indices`, in new memory."""
        runs = Runs.taking(np.asarray(indices, np.int64))
        columns = {name: column.gather(runs) for name, column in self.columns.items()}
        return Batch.of(self.index.take(runs.source), columns)


def _storage(dtype: str) -> str:
    return {"bfloat16": "uint16", "utf8": "uint8"}.get(dtype, dtype)
