"""Columns of integers as Arrow IPC streams."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rljob_worker.arrow_batch import array_over, numbers_of


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
