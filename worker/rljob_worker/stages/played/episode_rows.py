"""Episodes that were played as columns of rows and as figures."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rljob_api.catalogue.columns import FINISH_STEP, STATE, SUCCESS, SUCCESS_AT_END, TASK_ID, VIDEO_EMBEDDING
from rljob_api.v1alpha1 import SimulatorSpec
from rljob_worker.batch import Column
from rljob_worker.batch.row_index import Int64
from rljob_worker.conversations.trajectory import TokenRow, Trajectory
from rljob_worker.metrics.scalars import Scalars, mean, mean_of, means_by_source

_TYPES: Mapping[str, Any] = {SUCCESS: np.uint8, SUCCESS_AT_END: np.uint8, FINISH_STEP: np.int64}
TASK = "task"
"""The column after whose values metrics are named, where the data has it."""


def episode_columns(
    trajectories: Sequence[Trajectory], of_row: Int64, rows: Sequence[TokenRow], simulator: SimulatorSpec
) -> dict[str, Column]:
    """What rows of episodes have besides those of conversations. of_row: the trajectory of each row."""
    columns = {
        name: Column.fixed(np.array([item.columns.get(name, 0) for item in trajectories], dtype)[of_row])
        for name, dtype in _TYPES.items()
    }
    if simulator.has_state:
        width = max((len(row.state) for row in rows if row.state is not None), default=0)
        nothing = np.zeros(width, np.float32)  # of an episode that failed
        states = [nothing if row.state is None else row.state for row in rows]
        columns[STATE] = Column.ragged(states, "float32")
    if simulator.video is not None:
        tasks = np.array([number_of_task(item.task.columns.get(TASK, "")) for item in trajectories], np.int64)
        columns |= {TASK_ID: Column.fixed(tasks[of_row]), VIDEO_EMBEDDING: _embeddings(trajectories, of_row)}
    return columns


def number_of_task(task: str) -> int:
    """Equal for equal names of tasks; float64 holds it exactly."""
    return int.from_bytes(hashlib.blake2b(task.encode(), digest_size=6).digest(), "little")


def _embeddings(trajectories: Sequence[Trajectory], of_row: Int64) -> Column:
    """What became of the video of each trajectory, on its last row."""
    nothing = np.empty(0, np.float32)
    is_last = np.append(of_row[1:] != of_row[:-1], True)
    embeddings = [nothing if item.embedding is None else item.embedding for item in trajectories]
    on_rows = [embeddings[at] if last else nothing for at, last in zip(of_row, is_last, strict=True)]
    return Column.ragged(on_rows, "float32")


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
