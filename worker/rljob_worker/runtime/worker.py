"""Puts one worker together: world, engines, stages, loop; runs it; says how it ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rljob_api.planning.plan import StagePlan
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.checkpoint.rows import HeldRows, read_rows
from rljob_worker.checkpoint.state import GroupState
from rljob_worker.checkpoint.writer import RankFiles, engine_folder
from rljob_worker.databuffer.client import BufferClient, Identity
from rljob_worker.databuffer.peers import AddressBook
from rljob_worker.databuffer.routing import Host
from rljob_worker.engines.protocols import TrainEngine
from rljob_worker.launcher.last_words import LastWords
from rljob_worker.metrics.reporter import Reporter
from rljob_worker.runtime.control import Control, Opening, Verdict
from rljob_worker.runtime.devices import require_devices_of_torch
from rljob_worker.runtime.environment import WorkerEnvironment
from rljob_worker.runtime.figures import data_metrics
from rljob_worker.runtime.handover import Handover
from rljob_worker.runtime.lead import Lead, build_lead
from rljob_worker.runtime.loop import Loop, Parts
from rljob_worker.runtime.opening import open_run
from rljob_worker.runtime.resources import build_resources, build_validation
from rljob_worker.runtime.status import StatusPoster
from rljob_worker.runtime.weight_sync import WeightSync
from rljob_worker.runtime.world import device_of, wait_for_address, world
from rljob_worker.scalars import Scalars
from rljob_worker.stages import build_stage
from rljob_worker.stages.stage import Resources, RowKeepingStage, Stage, StageContext
from rljob_worker.stages.warm_up import policy_version

log = logging.getLogger(__name__)


def run_worker(environment: WorkerEnvironment, stop: threading.Event) -> LastWords:
    """Join the group, run the job to its end, report how it went. Raises RLJobError."""
    plan, group = environment.plan, environment.group_plan
    require_devices_of_torch(group)
    deadline = plan.spec.data_buffer.deadline_seconds
    identity = Identity(
        token=environment.token,
        attempt=environment.attempt,
        plan_hash=plan.hash(),
        group=environment.group,
        host=environment.host_index,
        rank=environment.rank,
    )
    client = BufferClient(environment.buffer_socket, identity)
    host = wait_for_address(AddressBook(environment.peers, plan.job), Host(environment.group, 0), deadline)
    with world(client, group, environment.rank, host=host, attempt=environment.attempt, deadline_seconds=deadline):
        worker = Worker.assemble(environment, client, stop)
        words = worker.run()
    client.drain(deadline)
    return words


@dataclass
class Worker:
    """One rank with everything built."""

    environment: WorkerEnvironment
    client: BufferClient
    control: Control
    resources: Resources
    schedule: tuple[tuple[StagePlan, Stage], ...]
    trainable: Mapping[str, TrainEngine]
    """By engine name: what a checkpoint holds."""
    stop: threading.Event
    reporter: Reporter
    status: StatusPoster

    @staticmethod
    def assemble(environment: WorkerEnvironment, client: BufferClient, stop: threading.Event) -> Worker:
        plan, group = environment.plan, environment.group_plan
        device = device_of(group, environment.local_rank)
        cache_dir = environment.run_dir / "cache"
        resources = build_resources(plan, group, environment.rank, device, cache_dir)
        stages = [plan.stage(name) for name in group.schedule]
        return Worker(
            environment=environment,
            client=client,
            control=Control(
                client, plan.worker_offset(group.name) + environment.rank, plan.spec.data_buffer.deadline_seconds
            ),
            resources=resources,
            schedule=tuple((stage, build_stage(stage, resources)) for stage in stages),
            trainable={
                engine.name: resources.train_engines[engine.model]
                for engine in plan.engines
                if engine.group == group.name and engine.trainable
            },
            stop=stop,
            reporter=Reporter.from_environment(),
            status=StatusPoster(client.post),
        )

    def run(self) -> LastWords:
        lead, opening = self._open()
        state = self._restore(opening)
        if lead is not None:
            lead.recorder.resume_from(opening.step, state.active_seconds)
        step, verdict = Loop(self._parts(lead)).run(opening)
        self.status.close()
        if lead is not None:
            lead.recorder.close()
        if self.resources.rewards is not None:
            self.resources.rewards.close()
        return self._last_words(step, verdict)

    def _open(self) -> tuple[Lead | None, Opening]:
        """The lead chooses where to go on and tells the others."""
        if not self.environment.is_lead:
            return None, self.control.await_opening()
        start = open_run(self.environment)
        opening = Opening(start.step, None if start.checkpoint is None else str(start.checkpoint))
        lead = build_lead(self.environment, self.control, self.reporter)
        lead.open(opening)
        return lead, opening

    def _restore(self, opening: Opening) -> GroupState:
        """Load engines and stage state; or the weights of another run when this one begins."""
        if opening.checkpoint is None:
            self._init_from(self.environment.plan.spec.checkpoint.init_from)
            return GroupState()
        checkpoint = Path(opening.checkpoint)
        for name, engine in self.trainable.items():
            engine.load(checkpoint / "engines" / engine_folder(name))
        state = GroupState.read(checkpoint, self.environment.group)
        state.check_dataset(self._fingerprint())
        for plan, stage in self.schedule:
            if plan.name in state.stages:
                stage.load_state(state.stages[plan.name])  # type: ignore[attr-defined]
            if isinstance(stage, RowKeepingStage):
                dp_rank = plan.mesh.dp_rank(self.environment.rank)
                stage.load_rows(read_rows(checkpoint, plan.name, dp_rank, plan.mesh.dp))
        log.info("resumed from step %d (%s)", opening.step, checkpoint)
        return state

    def _init_from(self, source: str | None) -> None:
        if source is None:
            return
        from rljob_worker.checkpoint.init_from import load_initial_weights

        load_initial_weights(Path(source), self.trainable)

    def _parts(self, lead: Lead | None) -> Parts:
        plan, environment = self.environment.plan, self.environment
        stages = [stage for stage, _ in self.schedule]
        deadline = plan.spec.data_buffer.deadline_seconds
        return Parts(
            schedule=self.schedule,
            context=self._context,
            handover=Handover(plan, environment.group, environment.rank, self.client, deadline),
            weights=WeightSync(
                plan,
                environment.group,
                environment.rank,
                self.client,
                self.resources.train_engines,
                self.resources.rollout_engines,
            ),
            control=self.control,
            save=self._saver(lead),
            validation=build_validation(plan, stages, environment.rank, self.resources, environment.run_dir / "cache"),
            validates=bool(plan.spec.data.validation),
            lead=lead,
            statistics=self._statistics,
            stop_requested=self.stop.is_set,
            show=self._show,
            post=self.status,
            policy_version=partial(policy_version, plan.spec),
            total_steps=plan.spec.stop.steps,
            validate_every=plan.spec.validation.every_steps,
        )

    def _context(self, stage: StagePlan, step: int) -> StageContext:
        spec = self.environment.plan.spec
        mesh = self.resources.meshes[stage.mesh]
        return StageContext(
            step=step,
            seed=spec.seed,
            job=spec,
            decode=self._decode,
            reduce=mesh.sum,
            copy=mesh,
            dp_rank=stage.mesh.dp_rank(self.environment.rank),
            dp_size=stage.mesh.dp,
        )

    def _decode(self, ids: np.ndarray) -> str:
        assert self.resources.tokenizer is not None
        return str(self.resources.tokenizer.decode(ids, skip_special_tokens=True))

    def _saver(self, lead: Lead | None) -> Callable[[int], None]:
        environment = self.environment
        files = RankFiles(environment.run_dir, environment.owner, environment.group, environment.rank)

        def save(step: int) -> None:
            files.save(step, self.trainable, self._state(lead).to_json(), list(self._held_rows()))

        return save

    def _state(self, lead: Lead | None) -> GroupState:
        stages = {plan.name: stage.state() for plan, stage in self.schedule if hasattr(stage, "state")}
        return GroupState(stages, self._fingerprint(), 0.0 if lead is None else lead.recorder.active_seconds)

    def _held_rows(self) -> Iterator[HeldRows]:
        """Rows that stages hold; of tensor-parallel peers one writes."""
        rank = self.environment.rank
        for plan, stage in self.schedule:
            if isinstance(stage, RowKeepingStage) and plan.mesh.is_row_leader(rank):
                rows = stage.rows()
                if rows is not None:
                    yield HeldRows(plan.name, plan.mesh.dp_rank(rank), rows)

    def _fingerprint(self) -> str | None:
        return None if self.resources.dataset is None else self.resources.dataset.fingerprint

    def _show(self, metrics: Scalars) -> None:
        """The lead's recorder shows the merged metrics of all workers; every other worker its own."""
        if not self.environment.is_lead:
            self.reporter.send({name: scalar.value for name, scalar in metrics.items()})

    def _statistics(self) -> Scalars:
        """The data plane's figures since the last call; bytes add up over workers, waits are averaged."""
        return data_metrics(self.client.statistics())

    def _last_words(self, step: int, verdict: Verdict) -> LastWords:
        code = ExitCode.STOPPED if verdict.stopped else ExitCode.DONE
        checkpoint = step if self.environment.keeps_checkpoints else None
        return LastWords(int(code), step, checkpoint, verdict.cause, self.environment.name)
