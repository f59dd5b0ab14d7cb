"""Columns of integers as Arrow IPC streams, without pandas: `to_numpy` and `pa.array` import it (seconds, 50 MB)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def array_over(values: NDArray[np.int64]) -> pa.Array:
    """An Arrow array over the same memory."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def numbers_of(array: pa.Array, storage: str) -> Any:
    """The values of an Arrow array over its own memory."""
    data = array.buffers()[1]
    if data is None or not data.size:
        return np.empty(0, storage)
    size = np.dtype(storage).itemsize
    return np.frombuffer(data, storage, len(array), array.offset * size)


def table_to_bytes(columns: Mapping[str, NDArray[np.int64]]) -> bytes:
    """Columns of integers as an Arrow IPC stream."""
    record = pa.RecordBatch.from_arrays([array_over(values) for values in columns.values()], names=list(columns))
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(use_threads=False)  # not worth waking a pool
    with pa.ipc.new_stream(sink, record.schema, options=options) as writer:
        writer.write_batch(record)
    return bytes(sink.getvalue())


def table_from_bytes(data: bytes | pa.Buffer) -> dict[str, NDArray[np.int64]]:
    """The other way round; without a copy."""
    record = pa.ipc.open_stream(data).read_next_batch()
    return {name: numbers_of(record.column(i), "int64") for i, name in enumerate(record.schema.names)}
