"""Draw numbers and places: what was drawn under a number stands in a batch under the number of its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rljob_worker.batch import Batch
from rljob_worker.stages.draws.assembly import Int64


def numbered(held: Batch, numbers: Int64, *, first_group: int, rows_per_group: int) -> Batch:
    """The rows of the batch's groups at their places: the i-th draw number is group `first_group` + i.

    rows_per_group: row numbers that a group has, whether or not that many are there.
    """
    batch = held.take(np.flatnonzero(np.isin(held.group_ids, numbers)))
    group_ids = first_group + np.searchsorted(numbers, batch.group_ids)
    row_ids = batch.row_ids + (group_ids - batch.group_ids) * rows_per_group
    return Batch(row_ids, group_ids, batch.num_tokens, batch.columns)


def renumbered(
    sample: Mapping[str, Any], numbers: Int64, surplus: Int64, *, first_group: int, rows_per_group: int
) -> dict[str, Any]:
    """A sample of a drawn row at its place in the batch; where its group has none, `dropped`, or `waiting` for a later
    step as part of the surplus."""
    group, row = divmod(sample["row_id"], rows_per_group)
    place = int(np.searchsorted(numbers, group))
    if place == len(numbers) or numbers[place] != group:
        return {**sample, "waiting" if group in surplus else "dropped": True}
    return {**sample, "row_id": (first_group + place) * rows_per_group + row}
