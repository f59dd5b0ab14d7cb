"""A stage of the user's own: `module:function`, called with this rank's rows.

def style(batch: Batch, context: StageContext) -> dict[str, Column | np.ndarray | list]:
    return {"style_reward": [...one value per row...]}
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rljob_api.planning.plan import StagePlan
from rljob_worker.batch import Batch, Column
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.scalars import mean
from rljob_worker.stages.stage import Resources, StageContext, StageResult
from rljob_worker.users_code import why_hidden


class UserStage:
    """Runs a function and holds it to the columns the job declares."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        self._stage = stage
        self._function = load_function(stage.run, f"stage {stage.name}")
        check_signature(self._function, stage)

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        assert batch is not None
        try:
            written = self._function(batch, context, **self._stage.options)
        except Exception as error:  # the user's code may raise anything; the message names it and where
            raise BadData(f"stage {self._stage.name}: {self._stage.run} raised {describe(error)}") from error
        columns = checked_columns(self._stage, written, batch)
        metrics = {
            f"stage/{self._stage.name}/{name}": mean(float(column.values.sum()), len(batch))
            for name, column in columns.items()
            if not column.is_ragged and column.values.dtype.kind in "fiub" and column.values.ndim == 1
        }
        return StageResult(batch.select([]).with_columns(columns), metrics)


def load_function(reference: str, owner: str) -> Callable[..., Any]:
    """Import `module:function`; InvalidJob names what is missing."""
    module_name, _, name = reference.partition(":")
    if hidden := why_hidden(module_name):
        raise InvalidJob(f"{owner}: {hidden}")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidJob(
            f"{owner}: cannot import {module_name!r} ({error}); put the file beside the job's YAML or into `code`"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidJob(f"{owner}: module {module_name!r} has no function {name!r}")
    return function


def check_signature(function: Callable[..., Any], stage: StagePlan) -> None:
    """The function takes (batch, context) and the declared options; found out before the first step."""
    try:
        inspect.signature(function).bind(None, None, **stage.options)
    except TypeError as error:
        raise InvalidJob(f"stage {stage.name}: {stage.run} must accept (batch, context, **options): {error}") from error


def checked_columns(stage: StagePlan, written: object, batch: Batch) -> dict[str, Column]:
    """The returned columns, exactly those declared in `writes`, one value per row each."""
    if not isinstance(written, Mapping) or set(written) != set(stage.writes):
        found = sorted(written) if isinstance(written, Mapping) else type(written).__name__
        raise BadData(
            f"stage {stage.name}: {stage.run} returned {found}, but the job declares writes: {sorted(stage.writes)}"
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


def describe(error: BaseException) -> str:
    """The exception and the line of the user's file it came from."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
