"""A worker of a guest: a host of an elastic group, which takes leases of what is drawn until the job is over.

It is in no world but its own host's, hears no verdict, and keeps nothing between two leases.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rljob_api.planning.plan import Plan, StagePlan, WeightTransport
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.batch import Batch
from rljob_worker.databuffer.client import BufferClient
from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.protocol.errors import OutOfOrder
from rljob_worker.databuffer.protocol.worker_answers import GuestLease
from rljob_worker.databuffer.routes.guest_route import VALIDATION_PIECES, GuestRoute
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.errors import RLJobError
from rljob_worker.metrics.report import StepReport, report_to_bytes
from rljob_worker.metrics.reporter import Reporter
from rljob_worker.metrics.scalars import Scalars, mean, merge_all
from rljob_worker.process.last_words import LastWords, write_last_words
from rljob_worker.process.start_phases import phase
from rljob_worker.runtime.handover import Handover
from rljob_worker.runtime.setup.devices import device_of_worker, require_devices_of_torch
from rljob_worker.runtime.setup.environment import WorkerEnvironment
from rljob_worker.runtime.setup.plan import plan_of_worker
from rljob_worker.runtime.setup.resources import build_resources, build_validations
from rljob_worker.runtime.setup.world import wait_for_address, world
from rljob_worker.runtime.status import StatusPoster, StopSignal
from rljob_worker.runtime.validation import Validation
from rljob_worker.stages import build_stage
from rljob_worker.stages.stage import Resources, Stage, StageContext
from rljob_worker.stages.token_samples import token_samples
from rljob_worker.weights.buffers import BufferTransport
from rljob_worker.weights.slices import slices_of
from rljob_worker.weights.sync import Transport, WeightSync, build_weight_sync

LEAVE_SECONDS = 10.0
"""How long a guest that is asked to end waits for its owners to hear of it, and to take what it has made."""
NO_ROWS = Batch(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), {})
NOT_YET, NOTHING_MORE = 0.0, -1.0

log = logging.getLogger(__name__)


@dataclass
class Guest:
    """One rank with everything built."""

    plan: Plan
    """As a guest sees it (`guest_view`)."""
    client: BufferClient
    resources: Resources
    schedule: tuple[tuple[StagePlan, Stage], ...]
    handover: Handover
    weights: WeightSync
    validation: Validation | None
    """None in a job without validation data, or rewards."""
    num_pieces: int
    """How many pieces every validation has."""
    local_rank: int
    reporter: Reporter
    status: StatusPoster
    version: int = -1
    """Version of the weights that the engine has; -1 before the first, and after one that did not come whole."""
    num_leases: int = 0

    def run(self) -> LastWords:
        """Until there is nothing more to generate."""
        while (lease := self.next_lease()) is not None:
            seconds = self.take_weights(lease)
            if seconds is None:
                if self.copy.is_leader:
                    self.client.return_lease()
                continue
            self.status({"stage": lease.stage, "step": lease.step, "state": "running"})
            batch, report = self.make(lease, seconds)
            if self.copy.is_leader:
                self.client.deliver(lease, batch, report_to_bytes(report, self.local_rank))
                self.reporter.send({name: scalar.value for name, scalar in report.metrics.items()})
            self.num_leases += 1
        return LastWords(int(ExitCode.DONE), cause=f"nothing is left to generate, after {self.num_leases} leases")

    @property
    def copy(self) -> Any:
        """The ranks that generate together."""
        return self.resources.meshes[self.schedule[0][0].mesh]

    def next_lease(self) -> GuestLease | None:
        """The next lease, for all ranks of a copy alike; None when there is nothing more."""
        self.status({"stage": self.schedule[0][0].name, "state": "waiting for a lease"})
        names = [*(plan.name for plan, _ in self.schedule), VALIDATION_PIECES]

        def ask() -> tuple[np.ndarray, None]:
            lease = self.client.next_lease()
            if lease is None or not lease.stage:
                return np.array([NOT_YET if lease is None else NOTHING_MORE, *[0.0] * 6]), None
            fields = (lease.step, lease.rank, lease.index, lease.version, lease.first, lease.end)
            return np.array([1.0 + names.index(lease.stage), *fields], np.float64), None

        while True:
            # ranks that wait for their leader do so in a collective, for which there is a deadline
            (answer, _) = self.copy.from_leader((7,), ask)
            if answer[0] == NOTHING_MORE:
                return None
            if answer[0] != NOT_YET:
                stage, step, rank, index, version, first, end = map(int, answer)
                return GuestLease(
                    stage=names[stage - 1], step=step, rank=rank, index=index, version=version, first=first, end=end
                )

    def take_weights(self, lease: GuestLease) -> float | None:
        """Load the version that a lease is drawn with, unless it is there; seconds that took. None where nobody has it
        any more, because the lease is done and its batch trained on."""
        started = time.perf_counter()
        if lease.version != self.version:
            self.status({"stage": "weights", "version": lease.version, "state": "waiting"})
            self.version = -1
            try:
                self.weights.sync(lease.version)
            except OutOfOrder as error:
                log.info("lease %d of step %d is returned: %s", lease.index, lease.step, error)
                return None
            self.version = lease.version
        return time.perf_counter() - started

    def make(self, lease: GuestLease, weights_seconds: float) -> tuple[Batch, StepReport]:
        """What a lease asks for: rows, or a piece of a validation, of which there is only a report."""
        if lease.stage != VALIDATION_PIECES:
            return self.generate(lease, weights_seconds)
        if self.validation is None:
            return NO_ROWS, StepReport()
        self.status({"stage": "validation", "step": lease.step, "state": "running"})
        metrics, samples = self.validation.run_part(lease.first, self.num_pieces)
        return NO_ROWS, StepReport(metrics, samples)

    def generate(self, lease: GuestLease, weights_seconds: float) -> tuple[Batch, StepReport]:
        """Run all stages on the numbers of a lease; what they write, and what they measure. Ranks that lead no rows run
        only what has an engine."""
        written: list[Batch] = []
        metrics: list[Scalars] = [{"time/weights_seconds": mean(weights_seconds)}]
        samples: list[dict[str, Any]] = []
        for plan, stage in self.schedule:
            if not (plan.engines or self.copy.is_leader):
                continue
            started = time.perf_counter()
            result = stage.run(self.handover.take(plan, lease.step), self._context(plan, lease))
            metrics += [result.metrics, {f"time/{plan.name}_seconds": mean(time.perf_counter() - started)}]
            if self.copy.is_leader:
                self.handover.give(plan, lease.step, result.batch)
                samples += [*result.samples, *self._token_samples(plan, result.batch, lease.step)]
            written.append(result.batch)
        if self.copy.is_leader:
            self.handover.end_step()
        return Batch.join(written), StepReport(merge_all(metrics), samples)

    def _token_samples(self, plan: StagePlan, batch: Batch, step: int) -> list[dict[str, Any]]:
        several, tokenizer = self.plan.rows_per_trajectory, self.resources.tokenizers[self.plan.policy_of(plan.name)]
        first_row = (step - 1) * self.plan.spec.num_rows * several
        return token_samples(
            batch, tokenizer.decode, first_row=first_row, rows_per_trajectory=several,
            num_agents=self.plan.spec.num_agents,
        )  # fmt: skip

    def _context(self, plan: StagePlan, lease: GuestLease) -> StageContext:
        spec = self.plan.spec
        tokenizer = self.resources.tokenizers[self.plan.policy_of(plan.name)]
        return StageContext(
            step=lease.step,
            seed=spec.seed,
            job=spec,
            decode=partial(tokenizer.decode, skip_special_tokens=True),
            reduce=self.copy.sum,
            exchange=self.copy.exchange,
            copy=self.copy,
            dp_rank=plan.mesh.dp_rank(self.local_rank),
            dp_size=plan.mesh.dp,
            numbers=range(lease.first, lease.end),
        )


def run_guest(environment: WorkerEnvironment, stop: StopSignal) -> LastWords:
    """Join the ranks of this host, generate to the end of the job, or until this host is asked to end."""
    require_devices_of_torch(environment.group_plan)
    group = guest_view(environment.plan).group(environment.group)
    deadline = environment.plan.spec.data_buffer.deadline_seconds
    identity = Identity(
        token=environment.token,
        attempt=environment.attempt,
        plan_hash=environment.plan.hash(),
        group=environment.group,
        host=environment.host_index,
        rank=environment.rank,
    )
    client, stopping = BufferClient(environment.buffer_socket, identity), threading.Event()
    with contextlib.closing(client), stop.passed_on(partial(leave, client, stopping, environment.name)):
        own = Host(environment.group, environment.host_index)
        host = wait_for_address(AddressBook(environment.peers, environment.plan.job), own, deadline)
        first = (environment.host_index, environment.rank - environment.local_rank)
        joining = world(
            client,
            group,
            environment.local_rank,
            host=host,
            attempt=environment.attempt,
            deadline_seconds=deadline,
            first=first,
        )
        with unless_stopping(stopping), joining:
            guest = build_guest(environment, client)
            words = guest.run()
            guest.status.close()
            for rewards in guest.resources.rewards.values():
                rewards.close()
            for conversations in guest.resources.conversations.values():
                conversations.close()
        client.drain(deadline)
    return words


def build_guest(environment: WorkerEnvironment, client: BufferClient) -> Guest:
    """Collective over the ranks of this host."""
    access, local_rank, route = environment.data_access, environment.local_rank, GuestRoute.of(environment.plan)
    assert route is not None, "the job has guests"
    plan = guest_view(plan_of_worker(environment.plan, environment.group, access.cache_dir))
    group = plan.group(environment.group)
    device = device_of_worker(plan, group, local_rank)
    resources = build_resources(plan, group, local_rank, device, access)
    stages = [plan.stage(name) for name in group.schedule]
    with phase("stages"):
        schedule = tuple((stage, build_stage(stage, resources)) for stage in stages)
    transports: dict[WeightTransport, Transport] = {"DataBuffer": BufferTransport(client)}
    return Guest(
        plan=plan,
        client=client,
        resources=resources,
        schedule=schedule,
        handover=Handover(plan, group.name, local_rank, client, plan.spec.data_buffer.deadline_seconds),
        weights=build_weight_sync(
            plan, group.name, local_rank, transports, {}, resources.rollout_engines, slices_of(plan), device
        ),
        validation=next(iter(build_validations(plan, stages, local_rank, resources, access).values()), None),
        num_pieces=route.num_pieces,
        local_rank=local_rank,
        reporter=Reporter.from_environment(),
        status=StatusPoster(client.set_status),
    )


def guest_view(plan: Plan) -> Plan:
    """The plan of one guest: its group is one host, which runs the stages of guests on the mesh of its engine, and
    hands rows on between these alone."""
    group = plan.elastic_group
    assert group is not None, "the job has guests"
    (engine,) = [engine for engine in plan.engines if engine.group == group.name]
    alone = group.model_copy(update={"replicas": 1, "elastic": None})
    here = {"group": group.name, "mesh": engine.mesh, "generated_in": None}
    stages = [stage.model_copy(update=here) if stage.generated_in == group.name else stage for stage in plan.stages]
    edges = [edge for edge in plan.edges if {edge.producer, edge.consumer} <= set(group.schedule)]
    groups = [alone if item.name == group.name else item for item in plan.groups]
    return plan.model_copy(update={"groups": tuple(groups), "stages": tuple(stages), "edges": tuple(edges)})


def leave(client: BufferClient, stopping: threading.Event, name: str) -> None:
    """This host is asked to end: what is generated is given back at once, what is made is handed over, and the process
    ends, wherever it is."""
    stopping.set()
    client.request_stop()
    with contextlib.suppress(RLJobError):
        client.drain(LEAVE_SECONDS)
    write_last_words(LastWords(int(ExitCode.STOPPED), cause="asked to end: its leases were returned", worker=name))
    os._exit(int(ExitCode.STOPPED))


@contextlib.contextmanager
def unless_stopping(
    stopping: threading.Event, park: Callable[[], None] = lambda: time.sleep(2 * LEAVE_SECONDS)
) -> Iterator[None]:
    """Errors of the block, unless this host is asked to end: then they come of that, and `leave` ends the process."""
    try:
        yield
    except Exception:
        if stopping.is_set():
            park()
        raise
