"""The job over data buffers: every pod has one, in its namespace; all workers are threads of this process."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from planes.systems import peak_bytes
from shaped_links import data_buffer_in, shaped

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import Plan
from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.client import BufferClient
from rljob_worker.databuffer.routes.job_tree import FAN_OUT
from rljob_worker.databuffer.tests.gang import Gang, group, plan_of, stage
from rljob_worker.metrics.report import StepReport, report_to_bytes
from rljob_worker.metrics.scalars import mean
from rljob_worker.tests.namespaces import Place
from scaled_jobs.load import COLUMNS, GENERATING, GROUP_SIZE, JobLoad, Measured
from scaled_jobs.marks import Mark, Marks

EDGE = "sample->update"
PORT, SCRAPED = 7001, 7002
READY_SECONDS = 240
VERDICT = "verdict"


def plan_for(load: JobLoad) -> Plan:
    """One group whose workers sample and update, as in a colocated job; rows are balanced by their tokens."""
    mesh = Mesh(dp=load.pods)
    stages = [stage("sample", "train", mesh), stage("update", "train", mesh, "Tokens")]
    return plan_of(
        [group("train", load.pods, 1, ["sample", "update"])],
        stages,
        {EDGE: list(COLUMNS)},
        batch_size=load.pods * load.rows // GROUP_SIZE,
        group_size=GROUP_SIZE,
        memory=f"{16 + 6 * load.pod_bytes // 2**20}Mi",
        deadline_seconds=300.0,
    )


@contextlib.contextmanager
def running(load: JobLoad, directory: Path, places: Sequence[Place]) -> Iterator[Gang]:
    """The data buffers of all pods, each in its namespace."""
    gang = Gang(plan_for(load), directory)
    gang.write_files()
    try:
        for (name, index), place in zip(gang.hosts(), places, strict=True):
            environment = gang.environment(name, index) | {
                "RLJOB_BUFFER_PORT": str(PORT),
                "RLJOB_METRICS_PORT": str(SCRAPED),
                "RLJOB_BUFFER_START_SECONDS": str(READY_SECONDS),
                "RLJOB_BUFFER_RETRY_SECONDS": "60",
                "RLJOB_BUFFER_FAN_OUT": str(FAN_OUT),
            }
            gang.processes[f"{name}-{index}"] = data_buffer_in(place, environment)
        for process in gang.processes.values():
            assert process.stdout is not None
            assert process.stdout.readline(), "a data buffer has ended; what it said is above"
        aside = directory / ".peers"
        aside.write_text(json.dumps({"train": [f"{place.address}:{PORT}" for place in places]}))
        aside.rename(directory / "peers.json")
        yield gang
    finally:
        for client in gang.clients:
            client.close()
        for process in gang.processes.values():
            process.kill()
            process.communicate()


class SimulatedPod:
    """A worker: step by step, waiting where it would compute."""

    def __init__(self, gang: Gang, load: JobLoad, index: int) -> None:
        self.client = gang.client("train", index)
        self._load, self._index = load, index
        lengths = load.lengths(index)
        self._lengths = lengths
        generator = np.random.default_rng(index)
        values = generator.integers(0, 2, int(lengths.sum()))
        self._columns = {name: Column.from_lengths(values.astype(dtype), lengths) for name, dtype in COLUMNS.items()}

    def step(self, step: int) -> None:
        """Generate, hand over, get, train, report."""
        load = self._load
        time.sleep(load.compute_seconds * GENERATING)
        ids = ((step - 1) * load.pods + self._index) * load.rows + np.arange(load.rows)
        self.client.put(step, EDGE, Batch.build(ids, ids // GROUP_SIZE, self._columns, self._lengths))
        rows = self.client.get(step, EDGE)
        tokens = int(rows.num_tokens.sum())
        self.client.release(rows)
        time.sleep(load.compute_seconds * (1 - GENERATING))
        self.client.report(step, report_to_bytes(StepReport({"tokens": mean(float(tokens))}), self._index))
        if step > 1:
            self.client.await_announcement(VERDICT, step - 1)


def lead(client: BufferClient, steps: int) -> None:
    """What the lead's thread does: the reports of a step become the verdict on it."""
    for step in range(1, steps + 1):
        client.announce(VERDICT, step, client.collect(step))


def measure(load: JobLoad, steps: int) -> Measured:
    """Steps after one to warm up: all pods at once, nobody waiting for anything except rows and verdicts."""
    with (
        shaped([load.megabits] * load.pods) as places,
        tempfile.TemporaryDirectory(dir="/dev/shm", prefix="rljob-") as directory,
        running(load, Path(directory), places) as gang,
        ThreadPoolExecutor(load.pods + 1) as pool,
    ):
        pods = list(pool.map(lambda index: SimulatedPod(gang, load, index), range(load.pods)))
        leading = pool.submit(lead, pods[0].client, steps + 1)
        buffers = [process.pid for process in gang.processes.values()]
        marks = Marks(load.pods, lambda: Mark.now([*buffers, os.getpid()], places))

        def live(pod: SimulatedPod) -> None:
            for step in range(1, steps + 2):
                pod.step(step)
                marks.passed(step)

        for item in [pool.submit(live, pod) for pod in pods]:
            item.result()
        leading.result()
        memory = max(map(peak_bytes, buffers))
    return marks.measured(load, memory)
