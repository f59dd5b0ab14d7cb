"""Rows that a stage holds between two steps, in a checkpoint: one Arrow file per data-parallel rank."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from rljob_worker.arrow_batch import from_arrow, to_arrow
from rljob_worker.batch import Batch
from rljob_worker.storage.place import Place


@dataclass(frozen=True, slots=True)
class HeldRows:
    """What a stage holds on one data-parallel rank."""

    stage: str
    dp_rank: int
    rows: Batch


def packed_rows(held: HeldRows) -> tuple[str, bytes]:
    """Name and content of the file for one rank's rows of a stage."""
    record = to_arrow(held.rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, record.schema) as writer:
        writer.write_batch(record)
    return _name(held.stage, held.dp_rank), sink.getvalue().to_pybytes()


def read_rows(checkpoint: Place, stage: str, dp_rank: int, dp_size: int) -> list[Batch]:
    """The rows that fall to a rank: of its own file, and with fewer ranks than before of those that are gone."""
    found = []
    while (path := checkpoint / _name(stage, dp_rank)).exists():
        found.append(from_arrow(pa.ipc.open_file(path.read_bytes()).get_batch(0)))
        dp_rank += dp_size
    return found


def _name(stage: str, dp_rank: int) -> str:
    return f"rows-{stage}-{dp_rank}.arrow"
