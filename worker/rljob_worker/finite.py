"""Numbers that have to be finite are found where they arise: later they are a gradient that says nothing of them."""

from __future__ import annotations

import numpy as np

from rljob_worker.batch import Column, Indices
from rljob_worker.batch.row_index import row_number


def first_not_finite(column: Column, row_ids: Indices) -> tuple[str, float] | None:
    """Where the first number is that is NaN or infinite, as `row 17` or in a ragged column `row 17, token 3`, and what
    it is; None where all are finite. row_ids: of the rows of the column."""
    broken = np.flatnonzero(~np.isfinite(column.values))
    if not len(broken):
        return None
    at = int(broken[0])
    value = float(column.values[at])
    if column.offsets is None:
        return f"row {row_number(row_ids[at])}", value
    row = int(np.searchsorted(column.offsets, at, side="right")) - 1
    return f"row {row_number(row_ids[row])}, token {at - int(column.offsets[row]) + 1}", value
