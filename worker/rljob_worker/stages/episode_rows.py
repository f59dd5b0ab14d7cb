"""Episodes that were played as columns of rows and as figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rljob_api.catalogue.columns import FINISH_STEP, STATE, SUCCESS, SUCCESS_AT_END
from rljob_worker.batch import Column
from rljob_worker.conversations.trajectory import TokenRow, Trajectory
from rljob_worker.metrics.scalars import Scalars, mean, mean_of, means_by_source
from rljob_worker.row_index import Int64

_TYPES: Mapping[str, Any] = {SUCCESS: np.uint8, SUCCESS_AT_END: np.uint8, FINISH_STEP: np.int64}
TASK = "task"
"""The column after whose values metrics are named, where the data has it."""


def episode_columns(
    trajectories: Sequence[Trajectory], of_row: Int64, rows: Sequence[TokenRow], *, has_state: bool
) -> dict[str, Column]:
    """What rows of episodes have besides those of conversations. of_row: the trajectory of each row."""
    columns = {
        name: Column.fixed(np.array([item.columns.get(name, 0) for item in trajectories], dtype)[of_row])
        for name, dtype in _TYPES.items()
    }
    if has_state:
        width = max((len(row.state) for row in rows if row.state is not None), default=0)
        nothing = np.zeros(width, np.float32)  # of an episode that failed
        states = [nothing if row.state is None else row.state for row in rows]
        columns[STATE] = Column.ragged(states, "float32")
    return columns


def episode_metrics(trajectories: Sequence[Trajectory]) -> Scalars:
    """Success at any step and at the last one, over all episodes that did not fail and of each task, and the steps of
    those that succeeded."""
    good = [item for item in trajectories if item.failed is None]
    values = {name: np.array([item.columns[name] for item in good], np.float64) for name in _TYPES}
    successes = values[SUCCESS]
    metrics = {
        "simulator/success": mean_of(successes),
        "simulator/success_at_end": mean_of(values[SUCCESS_AT_END]),
        "simulator/finish_step": mean(float((values[FINISH_STEP] * successes).sum()), int(successes.sum())),
    }
    tasks = [item.task.columns.get(TASK, "") for item in good]
    if all(tasks):
        metrics |= means_by_source("simulator/success", successes, tasks)
        metrics |= means_by_source("simulator/success_at_end", values[SUCCESS_AT_END], tasks)
    return metrics


def success_figures(success: np.ndarray, at_end: np.ndarray, tasks: Sequence[str] | None) -> Scalars:
    """Figures of validation; all [episodes]. tasks: None where the data has no such column."""
    figures = {"validation/success": mean_of(success), "validation/success_at_end": mean_of(at_end)}
    return figures | ({} if tasks is None else means_by_source("validation/success", success, tasks))
