"""Batches with a column of every kind, whose values tell the row or the group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from rljob_worker.batch import Batch, Column
from rljob_worker.batch.row_index import RowIndex
from rljob_worker.databuffer.rows import segment
from rljob_worker.databuffer.rows.segment import Views

GROUP_ROWS = 3
"""Numbers that a group may have; how many of them are rows is another matter."""

row_lists = st.lists(st.integers(0, 60), unique=True, max_size=30).map(sorted)


def index_of(row_ids: Sequence[int]) -> RowIndex:
    ids = np.asarray(row_ids, np.int64)
    return RowIndex(ids, ids // GROUP_ROWS, ids % 7)


def batch_of(row_ids: Sequence[int]) -> Batch:
    """One column of every kind by row, and of the kinds that can be per group."""
    index = index_of(row_ids)
    return Batch.of(index, by_row(index.row_ids) | by_group(index))


def by_row(ids: np.ndarray) -> dict[str, Column]:
    rows = ids.tolist()
    return {
        "ids": Column.ragged([np.arange(r % 4) + r for r in rows], "int32"),
        "bf16": Column.ragged([np.full(r % 3, r) for r in rows], "bfloat16"),
        "fp8": Column.ragged([np.full(r % 2, r) for r in rows], "float8_e4m3fn"),
        "text": Column.strings(["é" * (r % 3) for r in rows]),
        "bytes": Column.binary([bytes([r, 0, 255][: r % 4]) for r in rows]),
        "fixed": Column.fixed(ids.astype(np.float32)),
        "image": Column.fixed((ids[:, None, None] + np.arange(6).reshape(2, 3)).astype(np.float16)),
        "patches": Column.ragged([np.full((r % 3, 2, 2), r) for r in rows], "float32", (2, 2)),
        "flag": Column.fixed(ids % 2 == 0),
        "flags": Column.ragged([np.full(r % 2, True) for r in rows], "bool"),
        "scale": Column.fixed(ids.astype(np.uint16), "bfloat16"),
    }


def by_group(index: RowIndex) -> dict[str, Column]:
    """What the rows of a group have together; group 4 has nothing of any."""
    groups = np.unique(index.group_ids).tolist()
    sizes = {g: 0 if g == 4 else g % 5 + 1 for g in groups}
    columns = {
        "prompt": Column.ragged([np.full(sizes[g], g) for g in groups]),
        "answer": Column.strings([f"ä{g}"[: sizes[g]] for g in groups]),
        "picture": Column.binary([bytes([g]) * sizes[g] for g in groups]),
        "pixels": Column.ragged([np.full((sizes[g], 3), g) for g in groups], "float16", (3,)),
    }
    heads = np.unique(index.heads())
    return {name: column.per_group_at(heads, len(index)) for name, column in columns.items()}


def stored(batch: Batch) -> Views:
    """A batch as a part in an arena."""
    memory = np.zeros(1 << 18, np.uint8)
    contents = segment.contents_of(batch)
    segment.write(memory, 4096, contents, batch)
    return segment.views(memory, 4096, contents)


def same(left: Batch, right: Batch) -> bool:
    """Whether two batches hold the same rows and columns, bit for bit and stored alike."""
    return (
        list(left.columns) == list(right.columns)
        and all(np.array_equal(a, b) for a, b in zip(_numbers(left), _numbers(right), strict=True))
        and all(_same_column(left.columns[name], right.columns[name]) for name in left.columns)
    )


def _numbers(batch: Batch) -> list[np.ndarray]:
    return list(batch.index.columns().values())


def _same_column(left: Column, right: Column) -> bool:
    if left.offsets is not None and not (right.is_ragged and np.array_equal(left.offsets, right.offsets)):
        return False
    return left.is_like(right) and left.values.dtype == right.values.dtype and np.array_equal(left.values, right.values)
