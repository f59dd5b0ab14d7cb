"""Batch <-> Arrow record batch: rows between hosts, and what a checkpoint keeps of them.

    row_id, group_id, num_tokens   int64, always first
    fixed column                   the Arrow type of its values; fixed-size list when a row has several
    ragged column                  large list (64-bit offsets); text is large utf8, binary large binary
    bfloat16, bool, float8…        their bytes (uint16, uint8) with the meaning in the field's metadata

Both directions keep the buffers: no copy, no pickle.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rljob_worker.batch import Batch, Column
from rljob_worker.batch.column_kind import ColumnKind, column_kind_of
from rljob_worker.batch.row_index import INDEX_COLUMNS, RowIndex

_BYTE_TYPES = {"utf8": pa.large_utf8(), "binary": pa.large_binary()}


def to_arrow(batch: Batch) -> pa.RecordBatch:
    """The record batch over the same memory."""
    kinds = {name: column_kind_of(column) for name, column in batch.columns.items()}
    return to_record(batch.index, batch.columns, kinds)


def from_arrow(record: pa.RecordBatch) -> Batch:
    """The batch over the same memory."""
    return Batch.of(*columns_of_record(record, kinds_of_schema(record.schema)))


def schema_of(kinds: Mapping[str, ColumnKind]) -> pa.Schema:
    """The schema of rows with these columns, in their order."""
    return _schema(tuple(kinds.items()))


@functools.lru_cache(maxsize=256)  # an edge has the same columns in every step
def _schema(kinds: tuple[tuple[str, ColumnKind], ...]) -> pa.Schema:
    fields = [pa.field(name, pa.int64(), nullable=False) for name in INDEX_COLUMNS]
    return pa.schema([*fields, *(_field(name, kind) for name, kind in kinds)])


def to_record(index: RowIndex, columns: Mapping[str, Column], kinds: Mapping[str, ColumnKind]) -> pa.RecordBatch:
    """Rows in any order, of these kinds of columns, as a record batch over the same memory."""
    arrays = [array_over(values) for values in index.columns().values()]
    arrays += [_array(columns[name], kind) for name, kind in kinds.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(kinds))


def kinds_of_schema(schema: pa.Schema) -> dict[str, ColumnKind]:
    """Raises KeyError for a schema that `schema_of` did not make."""
    return {field.name: kind_of_field(field) for field in list(schema)[len(INDEX_COLUMNS) :]}


def columns_of_record(record: pa.RecordBatch, kinds: Mapping[str, ColumnKind]) -> tuple[RowIndex, dict[str, Column]]:
    """What `to_record` made a record batch of, over the memory of that."""
    numbers = [numbers_of(record.column(i), "int64") for i in range(len(INDEX_COLUMNS))]
    arrays = record.columns[len(INDEX_COLUMNS) :]
    return RowIndex(*numbers), {
        name: _column(array, kind) for array, (name, kind) in zip(arrays, kinds.items(), strict=True)
    }


def kind_of_field(field: pa.Field) -> ColumnKind:
    """Raises KeyError for a field that `to_arrow` did not make."""
    metadata: Mapping[bytes, bytes] = field.metadata
    tail = metadata[b"tail"].decode()
    return ColumnKind(
        metadata[b"dtype"].decode(),
        metadata[b"storage"].decode(),
        tuple(int(size) for size in tail.split(",") if size),
        metadata[b"ragged"] == b"1",
        metadata[b"per_group"] == b"1",
    )


def array_over(values: NDArray[np.int64]) -> pa.Array:
    """An Arrow array over the same memory. `pa.array` would import pandas (seconds, 50 MB), as `to_numpy` does."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def numbers_of(array: pa.Array, storage: str) -> Any:
    """The values of an Arrow array over its own memory."""
    data = array.buffers()[1]
    if data is None or not data.size:
        return np.empty(0, storage)
    size = np.dtype(storage).itemsize
    return np.frombuffer(data, storage, len(array), array.offset * size)


def _field(name: str, kind: ColumnKind) -> pa.Field:
    metadata = {
        "dtype": kind.dtype,
        "storage": kind.storage,
        "tail": ",".join(str(size) for size in kind.tail),
        "ragged": "1" if kind.ragged else "0",
        "per_group": "1" if kind.per_group else "0",
    }
    return pa.field(name, _type(kind), nullable=False, metadata=metadata)


@functools.lru_cache(maxsize=256)
def _item_type(storage: str, tail: tuple[int, ...]) -> pa.DataType:
    value = _value_type(storage)
    return pa.list_(pa.field("item", value, nullable=False), math.prod(tail)) if tail else value


@functools.lru_cache(maxsize=256)
def _value_type(storage: str) -> pa.DataType:
    # Arrow packs booleans into bits: they travel as the bytes numpy keeps
    return pa.uint8() if storage == "bool" else pa.from_numpy_dtype(np.dtype(storage))


@functools.lru_cache(maxsize=256)
def _type(kind: ColumnKind) -> pa.DataType:
    if kind.dtype in _BYTE_TYPES:
        return _BYTE_TYPES[kind.dtype]
    value = _item_type(kind.storage, kind.tail)
    return pa.large_list(pa.field("item", value, nullable=False)) if kind.ragged else value


def _array(column: Column, kind: ColumnKind) -> pa.Array:
    values = np.ascontiguousarray(column.values)
    data = pa.py_buffer(values.view(np.uint8) if values.size else b"")
    if kind.dtype in _BYTE_TYPES:
        return pa.Array.from_buffers(_type(kind), column.num_rows, [None, _offsets(column), data])
    flat = pa.Array.from_buffers(_value_type(kind.storage), values.size, [None, data])
    if kind.tail:
        flat = pa.Array.from_buffers(_item_type(kind.storage, kind.tail), len(values), [None], children=[flat])
    if not kind.ragged:
        return flat
    return pa.Array.from_buffers(_type(kind), column.num_rows, [None, _offsets(column)], children=[flat])


def _offsets(column: Column) -> pa.Buffer:
    assert column.offsets is not None
    return pa.py_buffer(np.ascontiguousarray(column.offsets, np.int64))


def _column(array: pa.Array, kind: ColumnKind) -> Column:
    if kind.dtype in _BYTE_TYPES:
        _, offset_buffer, data = array.buffers()
        return _ragged(_values(data, kind), offset_buffer, array, kind)
    if not kind.ragged:
        return Column(_items(array, kind), None, kind.dtype)
    return _ragged(_items(array.values, kind), array.buffers()[1], array, kind)


def _items(array: pa.Array, kind: ColumnKind) -> Any:
    """The values of an array of numbers, or of fixed-size lists of them, [values, *tail]."""
    if not kind.tail:
        return numbers_of(array, kind.storage)
    size = math.prod(kind.tail)  # `flatten` goes through Arrow's registry of functions
    numbers = numbers_of(array.values, kind.storage)[array.offset * size : (array.offset + len(array)) * size]
    return numbers.reshape(len(array), *kind.tail)


def _ragged(values: Any, offset_buffer: pa.Buffer, array: pa.Array, kind: ColumnKind) -> Column:
    if len(array) == 0:
        return Column(values[:0], np.zeros(1, np.int64), kind.dtype, kind.per_group)
    offsets = np.frombuffer(offset_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    return Column(values[offsets[0] : offsets[-1]], offsets - offsets[0], kind.dtype, kind.per_group)


def _values(data: pa.Buffer | None, kind: ColumnKind) -> Any:
    return np.frombuffer(data, kind.storage) if data is not None and data.size else np.empty(0, kind.storage)
