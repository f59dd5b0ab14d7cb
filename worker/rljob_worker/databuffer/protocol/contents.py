"""What a segment of rows has, and where."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_worker.batch.column_kind import ColumnKind


@dataclass(frozen=True, slots=True)
class Field:
    """Where one column lies, in bytes from the start of the segment; `offsets_at` is None for a fixed column."""

    name: str
    kind: ColumnKind
    num_values: int
    values_at: int
    offsets_at: int | None


@dataclass(frozen=True, slots=True)
class Contents:
    """Table of contents of a segment."""

    num_rows: int
    fields: tuple[Field, ...]
    num_bytes: int
