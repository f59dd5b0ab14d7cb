"""Streams between data buffers: Arrow record batches under a ticket, read with Flight's DoGet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class RecordStream:
    """What lies under a ticket. Each record batch comes with a checksum, empty where the offer told it."""

    schema: pa.Schema
    records: Iterator[tuple[pa.RecordBatch, bytes]]


Take = Callable[[pa.RecordBatch, bytes], None]
"""Copies a record batch, which came with this checksum, to where it belongs; the memory is not kept."""
