"""Rows of data that a simulator lists: what to train on in a job without data, and the episodes of validation."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rljob_api.v1alpha1 import DatasetSpec, EvaluationSpec, SimulatorSpec
from rljob_worker.data.find_or_make import Beat, find_or_make
from rljob_worker.embodied.simulators.pool import SimulatorPool
from rljob_worker.embodied.simulators.settings import FIELD, PoolLimits, SimulatorFailed, SimulatorSettings
from rljob_worker.errors import InvalidJob

TASK, INSTRUCTION = "task", "instruction"
TRAINING, EVALUATION = "tasks", "evaluation"
"""Names of the data sets, which metrics have."""

Rows = Sequence[Mapping[str, str]]


def listed_tasks(settings: SimulatorSettings, limits: PoolLimits, environment: Mapping[str, str]) -> Rows:
    """What an environment lists, asked in a process of its own. Raises InvalidJob."""

    async def asked() -> Rows:
        pool = SimulatorPool(settings, limits, environment)
        try:
            await pool.start()
            return await pool.tasks()
        finally:
            pool.close()

    try:
        rows = asyncio.run(asked())
    except SimulatorFailed as error:
        raise InvalidJob(f"{FIELD}.run: {settings.run}: its tasks cannot be listed: {error}") from error
    if not rows:
        raise InvalidJob(f"{FIELD}.run: {settings.run} lists no tasks; give data.train, or list some")
    for row in rows:
        if lacking := [name for name in (TASK, INSTRUCTION) if not row.get(name)]:
            raise InvalidJob(f"{FIELD}.run: {settings.run} lists a task without {lacking[0]!r}: {dict(row)}")
    return rows


def evaluation_rows(rows: Rows, evaluation: EvaluationSpec) -> list[Mapping[str, str]]:
    """Every task as often as there are trials; where it is listed with several initial states, these in turn. Raises
    InvalidJob for a task that is not listed."""
    of_task: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        of_task.setdefault(row[TASK], []).append(row)
    if unknown := [name for name in evaluation.tasks if name not in of_task]:
        there = ", ".join(of_task)
        raise InvalidJob(f"{FIELD}.evaluation.tasks: no task {unknown[0]!r} is listed; there are {there}")
    names = evaluation.tasks or tuple(of_task)
    return [of_task[name][trial % len(of_task[name])] for name in names for trial in range(evaluation.trials)]


class TaskLists:
    """Data sets of what a job's simulator lists, as files that all ranks share; the list is asked for once."""

    def __init__(self, simulator: SimulatorSpec, prompt_column: str, folder: Path, settings: SimulatorSettings) -> None:
        """prompt_column: where rows have their instruction. folder: on storage that all ranks share."""
        self._simulator, self._prompt_column, self._folder, self._settings = simulator, prompt_column, folder, settings

    def train(self, limits: PoolLimits, environment: Mapping[str, str]) -> DatasetSpec:
        """All that is listed. Raises InvalidJob, StorageError."""
        return self._kept(TRAINING, self._rows(limits, environment))

    def validation(self, evaluation: EvaluationSpec, limits: PoolLimits, environment: Mapping[str, str]) -> DatasetSpec:
        """The episodes of validation. Raises InvalidJob, StorageError."""
        return self._kept(EVALUATION, evaluation_rows(self._rows(limits, environment), evaluation))

    def _rows(self, limits: PoolLimits, environment: Mapping[str, str]) -> Rows:
        identity = json.dumps(self._settings.to_json(), sort_keys=True, default=str)
        place = self._folder / f"{digest_of(identity)}.tasks"

        def make(_: Beat) -> Iterator[bytes]:
            yield json.dumps(list(listed_tasks(self._settings, limits, environment))).encode()

        rows: Rows = json.loads(bytes(find_or_make(place, make)))
        return rows

    def _kept(self, name: str, rows: Rows) -> DatasetSpec:
        columns = (self._prompt_column, *self._simulator.columns)
        lines = [json.dumps(self._line(row, columns), sort_keys=True) for row in rows]
        text = "".join(f"{line}\n" for line in lines)
        place = self._folder / f"{name}-{digest_of(text)}.jsonl"
        if not place.exists():
            beside = place.with_name(f".{place.name}.{id(self)}")
            beside.write_text(text)
            beside.replace(place)
        return DatasetSpec(path=str(place), name=name)

    def _line(self, row: Mapping[str, str], columns: Sequence[str]) -> dict[str, str]:
        values = {**row, self._prompt_column: row[INSTRUCTION]}
        if lacking := [name for name in columns if name not in values]:
            raise InvalidJob(
                f"{FIELD}.columns: the simulator lists a task without {lacking[0]!r}; it has {', '.join(sorted(row))}"
            )
        return {name: values[name] for name in columns}


def digest_of(text: str) -> str:
    """Names a list."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
