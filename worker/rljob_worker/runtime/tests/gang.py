"""Whole gangs of workers in threads of one process: real workers, a real lead, a run directory; no engines, no rows."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from rljob_api.memory.phases import LEAST_ASLEEP_BYTES
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.batch import Batch
from rljob_worker.checkpoint.manifest import committed
from rljob_worker.data.listing import DataIdentity
from rljob_worker.metrics.reporter import Reporter
from rljob_worker.metrics.scalars import mean
from rljob_worker.runtime.checkpoints import Checkpoints
from rljob_worker.runtime.control import Follower
from rljob_worker.runtime.figures import StepFigures
from rljob_worker.runtime.lead.lead import Lead, build_lead
from rljob_worker.runtime.profiling.profiler import Profiler
from rljob_worker.runtime.profiling.timeline import BlockRecorder
from rljob_worker.runtime.setup.environment import WorkerEnvironment
from rljob_worker.runtime.tests.control_channel import FakeControlChannel
from rljob_worker.runtime.worker import Worker
from rljob_worker.stages.stage import StageResult
from rljob_worker.tests.documents import plan_of
from rljob_worker.tests.metrics import without_times
from rljob_worker.tests.waiting import wait_for
from rljob_worker.weights.sync import HeldVersion

DATA = {"train": [{"path": "some/data"}], "validation": [{"path": "more/data"}], "batchSize": 3}
Moment = Callable[[str, int, int], None]
"""Called with what a worker does, its number, and the step."""


def gang_plan(*, staleness=0, workers=3, **spec):
    """A job of `workers` pods that validates before the first step and after the last."""
    plan = plan_of(**{"groups": [("train", workers, 1)], "data": DATA, **spec})
    rollout = plan.spec.rollout.model_copy(update={"max_staleness": staleness})
    return plan.model_copy(update={"spec": plan.spec.model_copy(update={"rollout": rollout})})


NO_ROWS = Batch(*(np.empty(0, np.int64) for _ in range(3)), {})


def learnt_by(step):
    """What `Learning` has after a step, added up as it does."""
    return sum((0.1 * earlier for earlier in range(1, step + 1)), 0.0)


class Learning:
    """A stage that remembers: every step adds its number to what it has, which is the reward of all ranks."""

    def __init__(self, ordinal, moment, can_run=lambda: True):
        self.learnt, self._ordinal, self._moment, self._can_run = 0.0, ordinal, moment, can_run

    def run(self, batch, context):
        assert self._can_run(), "an engine whose weights are gone generates"
        self._moment("stage", self._ordinal, context.step)
        self.learnt += 0.1 * context.step
        # a third and seven of them: sums that floats round
        metrics = {"reward/mean": mean(self.learnt / 3 + self._ordinal * 7, 3.0)}
        return StageResult(NO_ROWS, metrics, [{"worker": self._ordinal, "learnt": self.learnt}])

    def state(self):
        return {"learnt": self.learnt}

    def load_state(self, state):
        self.learnt = state["learnt"]


class Weights:
    """Says which version it is asked for, and moves 8 bytes. A generator waits until every trainer has sent it; it is
    its engine as well, which loses its weights where it sleeps so deep."""

    def __init__(self, end, moment, published, trainers):
        """published: by version, the trainers that have sent it. trainers: all of them; None in a trainer."""
        self._end, self._moment, self._published, self._trainers = end, moment, published, trainers
        self.version = -1
        self._kept = set()
        self._staged = None
        self.is_there = True

    def held_bytes(self, depth):
        return LEAST_ASLEEP_BYTES

    def sleep(self, depth):
        self.is_there = depth != "Weights"

    def open(self, meeting):
        pass

    def close(self):
        assert self._staged is None, f"version {self._staged} was staged for nothing"

    def stage(self, version):
        assert self._trainers is not None and version > self.version, f"{version} after {self.version}"
        self._staged = version

    def sync(self, version, keep=()):
        if self._trainers is None:
            self._kept = self._kept & set(keep) | {version}
            self._end.publish(self._published, version)
        else:
            assert not keep, "a generator keeps one version"
            self.pass_over(version)
            self.version, self.is_there = version, True
        self._moment("sync", self._end.ordinal, version)
        self._end.num_bytes += 8.0
        return {"weights/version": mean(version)}

    def pass_over(self, version):
        assert self._staged in (None, version), f"version {self._staged} was staged, not {version}"
        self._staged = None
        self._end.await_published(self._published, version, self._trainers)

    def unpin(self):
        """There is nothing to let go of."""

    def pin(self, versions):
        if self._trainers is not None:
            return []
        assert self._kept >= set(versions), f"{self._kept} are kept, not all of {versions}"
        chunks = [SimpleNamespace(table=b"", data=torch.zeros(3, dtype=torch.uint8))]
        return [HeldVersion("actor", version, self._end.ordinal, chunks) for version in versions]

    def send_again(self, version, keep, part):
        assert {len(chunk.data) for chunk in part("actor", 0, 1)} == {3}
        self._kept = self._kept & set(keep) | {version}
        self._end.publish(self._published, version)


class Validation:
    """As right as the policy has learnt until the step whose weights there are."""

    def __init__(self, accuracy, ordinal, moment):
        self._accuracy, self._ordinal, self._moment = accuracy, ordinal, moment

    def run(self, take):
        self._moment("validate", self._ordinal, -1)
        return {"validation/accuracy": mean(self._accuracy())}, []


@dataclass(frozen=True)
class NotedCheckpoints(Checkpoints):
    """Says when it saves."""

    moment: Moment = field(default=lambda *_: None)

    def save(self, step, active_seconds, versions=(), written=lambda: None):
        self.moment("save", self.environment.ordinal, step)
        super().save(step, active_seconds, versions, written)


@dataclass
class Ended:
    """How a worker ended."""

    words: object = None
    error: BaseException | None = None
    committed_by_then: tuple[int, ...] = ()


@dataclass
class Gang:
    """One run directory; every `run` is an attempt."""

    folder: Path
    plan: object
    attempt: int = 0
    channel: FakeControlChannel | None = None
    keeps_checkpoints: bool = True
    generators: frozenset[int] = frozenset()
    """Workers that only generate, which may be ahead of the others."""
    _leads: list[Lead] = field(default_factory=list)

    def run(self, moment: Moment = lambda *_: None, *, seed=0, prepare=lambda channel: None, meanwhile=nullcontext):
        """All workers to their end; how each one ended, by number. `meanwhile` is called beside them."""
        self.attempt += 1
        self.channel = FakeControlChannel(self.plan.num_workers, seed=seed)
        self.channel.num_validating = len(self.generators)
        self._published = {}
        prepare(self.channel)
        ended = [Ended() for _ in range(self.plan.num_workers)]
        threads = [
            threading.Thread(target=self._run_one, args=(number, ended[number], moment)) for number in range(len(ended))
        ]
        for thread in threads:
            thread.start()
        try:
            meanwhile()
        finally:
            for thread in threads:
                thread.join(TEST_TIMEOUT_SECONDS)
        assert not any(thread.is_alive() for thread in threads)
        wait_for(lambda: all(thread.name != "lead" for thread in threading.enumerate()))
        for lead in self._leads:  # one that failed leaves its files to the end of its process
            lead.judge.recorder.close()
        return ended

    def _run_one(self, number, ended, moment):
        try:
            ended.words = self._worker(number, moment).run()
        except BaseException as error:
            ended.error = error
            self.channel.break_all()
        ended.committed_by_then = self.checkpoints

    def _worker(self, number, moment):
        environment = WorkerEnvironment(
            plan=self.plan, group="train", host_index=number, local_rank=0, attempt=self.attempt, peers="",
            buffer_socket="", token="", run_dir=self.folder, resume="auto", keeps_checkpoints=self.keeps_checkpoints,
        )  # fmt: skip
        stage = Learning(number, moment, lambda: weights.is_there)
        mesh = self.plan.stages[0].mesh
        plan = SimpleNamespace(
            name="learn", run="Rollout", models=("actor",), mesh=mesh, scatters_rows=False, generated_in=None
        )
        schedule = ((plan, stage),)
        end = self.channel.end(number)
        if environment.is_lead:
            self._leads.append(build_lead(environment, end, number, Reporter(None)))
        control = self._leads[-1] if environment.is_lead else Follower(end, number, Reporter(None))
        role = ("generators" if number in self.generators else "trainers") if self.generators else None
        figures = StepFigures(role=role)
        profiler = Profiler(
            self.plan.spec.training.profile.steps, self.folder, f"train-{number}", figures,
            [lambda: BlockRecorder(figures, "train", number)],
        )  # fmt: skip
        alone = SimpleNamespace(sum=None, exchange=None, is_leader=True)
        generates = number in self.generators
        accuracy = (lambda: learnt_by(weights.version)) if generates else (lambda: stage.learnt)
        trainers = set(range(self.plan.num_workers)) - self.generators
        weights = Weights(end, moment, self._published, trainers if generates else None)
        return Worker(
            environment=environment,
            client=end,
            resources=SimpleNamespace(
                rewards={},
                conversations={},
                tokenizers={},
                meshes={mesh: alone},
                # a generator scores, too: its engines take turns with their memory
                train_engines={"reference": SimpleNamespace(held_bytes=lambda: 0)} if generates else {},
                rollout_engines={"actor": weights} if generates else {},
            ),
            schedule=schedule,
            handover=SimpleNamespace(
                begin_step=lambda step: None, take=lambda *_: None, give=lambda *_: None, end_step=dict
            ),
            weights=weights,
            validations={} if self.generators and not generates else {"actor": Validation(accuracy, number, moment)},
            checkpoints=NotedCheckpoints(environment, {}, schedule, DataIdentity(), moment=moment),
            control=control,
            opening=control.open(),
            figures=figures,
            profiler=profiler,
            status=Silence(),
        )

    @property
    def checkpoints(self) -> tuple[int, ...]:
        return tuple(item.step for item in committed(self.folder / "checkpoints"))

    @property
    def lines(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def steps(self):
        return [line["step"] for line in self.lines]

    @property
    def story(self):
        """Everything that was written down but times."""
        return without_times(self.lines), (self.folder / "samples.jsonl").read_text()


class Silence:
    """Posts nothing."""

    def __call__(self, status):
        pass

    def close(self):
        pass
