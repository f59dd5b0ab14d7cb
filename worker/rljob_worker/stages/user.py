"""A stage of the user's own: `module:function`, called with this rank's rows.

def style(batch: Batch, context: StageContext) -> dict[str, Column | np.ndarray | list]:
    return {"style_reward": [...one value per row...]}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rljob_api.planning.plan import StagePlan
from rljob_worker.batch import Batch, Column
from rljob_worker.errors import BadData
from rljob_worker.metrics.scalars import mean_of
from rljob_worker.stages.stage import Resources, StageContext, StageResult
from rljob_worker.users_code.function import check_call, load_function

ARGUMENTS = ("batch", "context")
"""What a stage is called with besides its options."""


class UserStage:
    """Runs a function and holds it to the columns the job declares."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        self._stage = stage
        self._function = load_function(owner := f"stage {stage.name}", stage.run)
        check_call(owner, stage.run, self._function, ARGUMENTS, stage.options)

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        assert batch is not None
        try:
            written = self._function(batch, context, **self._stage.options)
        except Exception as error:  # the user's code may raise anything; the message names it and where
            raise BadData(f"stage {self._stage.name}: {self._stage.run} raised {describe_user_error(error)}") from error
        columns = checked_columns(self._stage, written, batch)
        metrics = {
            f"stage/{self._stage.name}/{name}": mean_of(column.values)
            for name, column in columns.items()
            if not column.is_ragged and column.values.dtype.kind in "fiub" and column.values.ndim == 1
        }
        return StageResult(batch.select([]).with_columns(columns), metrics)


def checked_columns(stage: StagePlan, written: object, batch: Batch) -> dict[str, Column]:
    """The returned columns, exactly those declared in `writes`, one value per row each."""
    if not isinstance(written, Mapping) or set(written) != set(stage.writes):
        result = sorted(written) if isinstance(written, Mapping) else type(written).__name__
        raise BadData(
            f"stage {stage.name}: {stage.run} returned {result}, but the job declares writes: {sorted(stage.writes)}"
        )
    columns = {name: as_column(value) for name, value in written.items()}
    for name, column in columns.items():
        if column.num_rows != len(batch):
            raise BadData(
                f"stage {stage.name}: column {name} has {column.num_rows} values for {len(batch)} rows; return one each"
            )
    return columns


def as_column(value: Any) -> Column:
    if isinstance(value, Column):
        return value
    if isinstance(value, list) and value and isinstance(value[0], str):
        return Column.strings(value)
    if isinstance(value, list) and value and isinstance(value[0], (list, tuple, np.ndarray)):
        return Column.ragged(value, np.asarray(value[0]).dtype.name)
    return Column.fixed(np.asarray(value))


def describe_user_error(error: BaseException) -> str:
    """The exception and the line of the user's file it came from."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
