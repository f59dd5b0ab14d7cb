"""Our data buffers: a worker that puts, one that gets, and the data buffers of their pods, all processes."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planes.leftovers import shared_directory
from planes.rows import COLUMNS, NUM_COLUMNS, RowCase, RowsPart, part_of
from planes.systems import ONE_POD
from planes.teams import Team
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import Plan
from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.tests.gang import Gang, as_processes, group, plan_of, stage, start, two_stages

EDGE = "a->b"
DEADLINE_SECONDS = 120.0


def plan_for(case: RowCase, place: str) -> Plan:
    memory = f"{16 + case.num_bytes * 5 // 4 >> 20}Mi" if case.megabytes > 18 else "256Mi"
    options: dict[str, Any] = {
        "batch_size": case.num_rows,
        "group_size": 1,
        "memory": memory,
        "deadline_seconds": DEADLINE_SECONDS,
    }
    if place == ONE_POD:
        assert case.num_writers == case.num_readers, "in one pod the same workers write and read"
        mesh = Mesh(dp=case.num_writers)
        stages = [stage("a", "train", mesh), stage("b", "train", mesh)]
        return plan_of([group("train", 1, case.num_writers, ["a", "b"])], stages, {EDGE: COLUMNS}, **options)
    balance = "None" if case.num_writers == case.num_readers else "Tokens"
    return two_stages((1, case.num_writers), (1, case.num_readers), columns=COLUMNS, balance=balance, **options)


class Writer:
    """Puts its rows under the ids of a step."""

    def __init__(self, gang: Gang, name: str, case: RowCase, source: Path, rank: int) -> None:
        self._client = gang.client(name, rank)
        self._num_rows = case.num_rows
        part = part_of(case, source, rank)
        self._row_ids, self._lengths = part.row_ids, part.lengths
        self._columns = {
            name: Column.fixed(values.reshape(len(part.lengths), -1))
            if case.is_padded
            else Column.from_lengths(values, part.lengths)
            for name, values in zip(COLUMNS, part.columns, strict=True)
        }

    def put(self, step: int) -> None:
        ids = self._row_ids + (step - 1) * self._num_rows
        self._client.put(step, EDGE, Batch.build(ids, ids, self._columns, self._lengths))

    def get(self, step: int) -> None:
        raise NotImplementedError

    def copy_out(self) -> None:
        raise NotImplementedError

    def part(self) -> RowsPart:
        raise NotImplementedError

    def release(self, step: int) -> None:
        return


class RowReader:
    """Gets rows as views of shared memory; `copy_out` copies them into arrays of its own, which it keeps."""

    def __init__(self, gang: Gang, name: str, case: RowCase, rank: int) -> None:
        self._client = gang.client(name, rank)
        self._case = case
        self._batch: Batch | None = None
        self._heap = np.ones((NUM_COLUMNS, 0), np.float32)
        self._columns: list[NDArray[np.float32]] = []

    def put(self, step: int) -> None:
        raise NotImplementedError

    def get(self, step: int) -> None:
        self._batch = self._client.get(step, EDGE)
        self._columns = [self._batch[name].values.reshape(-1) for name in COLUMNS]

    def copy_out(self) -> None:
        size = len(self._columns[0])
        if self._heap.shape[1] < size:
            self._heap = np.ones((NUM_COLUMNS, size), np.float32)
        for target, values in zip(self._heap, self._columns, strict=True):
            target[:size] = values
        self._columns = [target[:size] for target in self._heap]

    def part(self) -> RowsPart:
        assert self._batch is not None
        return RowsPart(self._batch.row_ids % self._case.num_rows, self._batch.num_tokens, self._columns)

    def release(self, step: int) -> None:
        if self._batch is not None:
            self._client.release(self._batch)
        self._batch, self._columns = None, []


class OurDataPlane:
    """Data buffers and the workers of both ends."""

    name = "rljob"
    module = "rljob_worker.databuffer"

    def __init__(self, case: RowCase, place: str, source: Path) -> None:
        self._stack = contextlib.ExitStack()
        try:
            self._start(case, place, source)
        except BaseException:
            self._stack.close()
            raise

    def _start(self, case: RowCase, place: str, source: Path) -> None:
        directory = self._stack.enter_context(shared_directory())
        self._gang = self._stack.enter_context(as_processes(plan_for(case, place), directory, self._begin))
        self._team = Team()
        self._stack.callback(self._team.close)
        writes = "train" if place == ONE_POD else "rollout"
        gang = Gang(self._gang.plan, directory)
        for rank in range(case.num_writers):
            self._team.add("writer", Writer, gang, writes, case, source, rank)
        for rank in range(case.num_readers):
            self._team.add("reader", RowReader, gang, "train", case, rank)
        self._team.wait_until_ready()

    def _begin(self, gang: Gang, group_name: str, host: int) -> subprocess.Popen[str]:
        return start(gang, group_name, host, module=self.module)

    def tell(self, action: str, step: int) -> list[dict[str, Any]]:
        return self._team.tell(action, step)

    def processes(self) -> Mapping[str, list[int]]:
        buffers = {f"data buffer {name}": [process.pid] for name, process in self._gang.processes.items()}
        return {**self._team.processes(), **buffers}

    def close(self) -> None:
        self._stack.close()


class Unchecked(OurDataPlane):
    """The same without checksums of rows."""

    name = "rljob, unchecked"
    module = "planes.unchecked"
