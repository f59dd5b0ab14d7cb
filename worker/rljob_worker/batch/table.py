"""The table that travels between stages: rows in `row_id` order, columns that may be ragged, nothing padded.

    Batch of two rows, responses of two and one tokens:
        row_ids    [16, 17]        group_ids [2, 2]        num_tokens [9, 8]   (prompt + response)
        response_ids   values [11, 12, 13]  offsets [0, 2, 3]
        rewards        values [1.0, 0.0]    offsets None

Only numpy: the data buffer, rewards and data loading read it without torch; engines wrap the arrays without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rljob_worker.batch.gather import Runs, copy_rows, offsets_of, take_rows
from rljob_worker.batch.row_index import RowIndex

Array = NDArray[Any]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One value per row (`offsets` None) or a run of values per row (ragged).

    values: [rows, ...] fixed, [offsets[-1], ...] ragged.   offsets: int64 [rows + 1] or None.
    dtype: what the values mean: a numpy name; "bfloat16" (values are uint16) or a float8 of torch's names (uint8);
    "utf8" or "binary" (ragged uint8).
    per_group: the rows of a group have one run together, stored once: at the first row of the group, the others being
    empty. Where that is depends on the groups, so such a column is read and taken through its batch.
    """

    values: Array
    offsets: Indices | None
    dtype: str
    per_group: bool = False

    @staticmethod
    def fixed(values: ArrayLike, dtype: str | None = None) -> Column:
        """One value per row."""
        array = np.ascontiguousarray(values)
        return Column(array, None, dtype or array.dtype.name)

    @staticmethod
    def ragged(rows: Sequence[ArrayLike], dtype: str = "int64", tail: tuple[int, ...] = ()) -> Column:
        """One run of values per row, each value of shape `tail`; bfloat16 rows come as uint16, float8 as uint8."""
        arrays = [np.asarray(row, dtype=_storage(dtype)) for row in rows]
        filled = [array for array in arrays if len(array)]
        assert all(array.shape[1:] == tail for array in filled), f"values are not of shape {tail}"
        values = np.concatenate(filled) if filled else np.empty((0, *tail), _storage(dtype))
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
        return replace(Column.binary([row.encode() for row in rows]), dtype="utf8")

    @staticmethod
    def binary(rows: Sequence[bytes]) -> Column:
        """Bytes that mean something to others: an image file, a document."""
        return Column(np.frombuffer(b"".join(rows), np.uint8), offsets_of([len(row) for row in rows]), "binary")

    @staticmethod
    def concat(columns: Sequence[Column]) -> Column:
        """Rows of several columns of one kind, in the given order."""
        first = columns[0]
        assert all(column.is_like(first) for column in columns), "columns of several kinds"
        offsets = offsets_of(np.concatenate([column.lengths for column in columns])) if first.is_ragged else None
        values = np.concatenate([column.values for column in columns])
        return Column(values, offsets, first.dtype, first.per_group)

    @staticmethod
    def merge(columns: Sequence[Column], runs: Sequence[Runs], num_rows: int) -> Column:
        """Rows of several columns of one kind, each at its row of the result; other ragged rows are empty."""
        first = columns[0]
        assert all(column.is_like(first) for column in columns), "columns of several kinds"
        offsets = None
        if first.is_ragged:
            lengths = np.zeros(num_rows, np.int64)
            for column, moved in zip(columns, runs, strict=True):
                lengths[moved.target] = column.lengths[moved.source]
            offsets = offsets_of(lengths)
        num_values = num_rows if offsets is None else int(offsets[-1])
        values = np.empty((num_values, *first.values.shape[1:]), first.values.dtype)
        for column, moved in zip(columns, runs, strict=True):
            copy_rows(values, offsets, column.values, column.offsets, moved)
        return Column(values, offsets, first.dtype, first.per_group)

    def has_rows_like(self, other: Column) -> bool:
        """Whether every row of one ragged column is as long as the other's, in columns of as many rows."""
        if self.offsets is None or other.offsets is None or self.per_group != other.per_group:
            return False
        return self.offsets is other.offsets or bool((self.offsets == other.offsets).all())

    def is_like(self, other: Column) -> bool:
        """Whether the two can be one column."""
        return (self.dtype, self.is_ragged, self.per_group) == (other.dtype, other.is_ragged, other.per_group)

    def per_group_at(self, heads: Indices, num_rows: int) -> Column:
        """A run per group as a column of `num_rows` rows: run i at row heads[i] (ascending), the group's first."""
        assert self.offsets is not None, "only ragged columns are per group"
        lengths = np.zeros(num_rows, np.int64)
        lengths[heads] = self.lengths
        return Column(self.values, offsets_of(lengths), self.dtype, per_group=True)

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
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.offsets is None else self.offsets.nbytes)

    def row(self, index: int) -> Any:
        """The value, run of values, text or bytes of one row."""
        if self.offsets is None:
            return self.values[index]
        run = self.values[self.offsets[index] : self.offsets[index + 1]]
        if self.dtype in ("utf8", "binary"):
            return run.tobytes().decode() if self.dtype == "utf8" else run.tobytes()
        return run

    def take(self, indices: Indices) -> Column:
        """The rows at `indices`, in that order, in new memory."""
        assert not self.per_group, "a column per group is taken through its batch, which knows the groups"
        return self.gather(Runs.taking(indices), len(indices))

    def gather(self, runs: Runs, num_rows: int, *, may_view: bool = False) -> Column:
        """Rows as `gather.take_rows` does it; columns of one batch share their runs."""
        values, offsets = take_rows(self.values, self.offsets, runs, num_rows, may_view=may_view)
        return Column(values, offsets, self.dtype, self.per_group)

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
            assert column.is_ragged or not column.per_group, f"column {name}: only ragged columns are per group"

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
        index, targets = index.take(order), RowIndex.targets_of(order, [len(part) for part in parts])
        by_row = [Runs.of(np.arange(len(target)), target) for target in targets]
        by_group = index.merged_groups([part.index for part in parts], targets) if parts[0].has_groups else by_row
        columns = {
            name: Column.merge(
                [part.columns[name] for part in parts], by_group if column.per_group else by_row, len(index)
            )
            for name, column in parts[0].columns.items()
        }
        return Batch.of(index, columns)

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
        """The column with a value for every row, those of a group repeated; `columns[name]` is as it is stored."""
        column = self._stored(name)
        return self.column_of(name, np.arange(len(self))) if column.per_group else column

    def column_of(self, name: str, rows: Indices) -> Column:
        """A column of the rows at positions `rows`, in that order, with a value for each of them."""
        column = self._stored(name)
        if not column.per_group:
            return column.take(rows)
        taken = column.gather(Runs.taking(self.index.head_of(rows)), len(rows))
        return replace(taken, per_group=False)

    def lengths(self, name: str) -> Indices:
        """Values per row of a ragged column, [rows]."""
        column = self._stored(name)
        return column.lengths[self.index.heads()] if column.per_group else column.lengths

    def values_of(self, name: str) -> list[Any]:
        """The value of every row; rows of a group share what is stored once for them."""
        column = self._stored(name)
        if not column.per_group:
            return column.to_list()
        heads = self.index.heads()
        of_head = {int(head): column.row(int(head)) for head in np.unique(heads)}
        return [of_head[int(head)] for head in heads]

    def _stored(self, name: str) -> Column:
        try:
            return self.columns[name]
        except KeyError:
            raise KeyError(f"no column {name!r}; this batch has {sorted(self.columns)}") from None

    @property
    def index(self) -> RowIndex:
        return RowIndex(self.row_ids, self.group_ids, self.num_tokens)

    @property
    def has_groups(self) -> bool:
        """Whether a column is stored per group."""
        return any(column.per_group for column in self.columns.values())

    @property
    def nbytes(self) -> int:
        return 3 * self.row_ids.nbytes + sum(column.nbytes for column in self.columns.values())

    def select(self, names: Iterable[str]) -> Batch:
        return Batch(self.row_ids, self.group_ids, self.num_tokens, {name: self._stored(name) for name in names})

    def with_columns(self, columns: Mapping[str, Column]) -> Batch:
        return Batch(self.row_ids, self.group_ids, self.num_tokens, {**self.columns, **columns})

    def rename(self, names: Mapping[str, str]) -> Batch:
        """Columns under new names: `{old: new}`; others keep theirs."""
        columns = {names.get(name, name): column for name, column in self.columns.items()}
        return Batch(self.row_ids, self.group_ids, self.num_tokens, columns)

    def take(self, indices: ArrayLike) -> Batch:
        """The rows at ascending positions `indices`, in new memory."""
        at = np.asarray(indices, np.int64)
        by_row = Runs.taking(at)
        by_group = self.index.group_runs(at) if self.has_groups else by_row
        columns = {
            name: column.gather(by_group if column.per_group else by_row, len(at))
            for name, column in self.columns.items()
        }
        return Batch.of(self.index.take(at), columns)


def _storage(dtype: str) -> str:
    if dtype.startswith("float8_"):
        return "uint8"
    return {"bfloat16": "uint16", "utf8": "uint8", "binary": "uint8"}.get(dtype, dtype)
