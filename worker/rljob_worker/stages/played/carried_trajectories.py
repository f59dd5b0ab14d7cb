"""Trajectories that go on in later rounds of `rollout.partial`: as rows of unfinished groups, and as a checkpoint has
them.

While a job runs, a run function waits in the event loop, and its row here says little more than that it is there. A
checkpoint has its record, from which it is replayed by whoever gets the row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rljob_worker.batch import Batch, Column
from rljob_worker.conversations.journal.records import Record
from rljob_worker.conversations.playing.turns import CarriedTrajectory, Turns
from rljob_worker.stages.draws.partial_rows import DRAWN_STEP, UNFINISHED

JOURNAL = "journal"
"""Column of a row that may go on: the record of its trajectory in a checkpoint, and nothing otherwise."""


def carried_columns(drawn_steps: Sequence[int], *, is_unfinished: Sequence[bool]) -> dict[str, Column]:
    """Columns that rows of a round have besides those of all rows; both are [rows]."""
    return {
        UNFINISHED: Column.fixed(np.array(is_unfinished, np.bool_)),
        DRAWN_STEP: Column.fixed(np.array(drawn_steps, np.int64)),
        JOURNAL: Column.strings("" for _ in drawn_steps),
    }


def with_journals(rows: Batch, under_way: Mapping[int, Turns], rows_per_trajectory: int) -> Batch:
    """Rows of groups that are not complete, one for each trajectory, with their records."""
    turns = [under_way[row_id // rows_per_trajectory] for row_id in rows.row_ids.tolist()]
    return rows.with_columns({JOURNAL: Column.strings(json.dumps(carried_json(item)) for item in turns)})


def carried_json(turns: Turns) -> dict[str, Any]:
    """A trajectory between two rounds."""
    trajectory, record = turns.trajectory, turns.journal.whole
    assert record is not None
    failure = None if trajectory.failed is None else [trajectory.failed, trajectory.message]
    return {"attempt": turns.task.attempt, "record": record.to_json(), "failure": failure}


def carried_of(rows: Batch, rows_per_trajectory: int) -> dict[tuple[int, int], CarriedTrajectory]:
    """By trajectory and attempt at its group, what `with_journals` was given."""
    result = {}
    for row_id, text in zip(rows.row_ids.tolist(), rows.values_of(JOURNAL), strict=True):
        value = json.loads(text)
        failure = None if value["failure"] is None else (value["failure"][0], value["failure"][1])
        key = (row_id // rows_per_trajectory, value["attempt"])
        result[key] = CarriedTrajectory(Record.from_json(value["record"]), failure)
    return result
