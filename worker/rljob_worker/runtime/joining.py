"""From a worker's environment to its last message: it joins its group, builds what its stages need, and is run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from rljob_api.planning.plan import StagePlan, WeightTransport
from rljob_worker.batch import Batch
from rljob_worker.data.listing import joined_identity
from rljob_worker.databuffer.client import BufferClient
from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.routes.guest_route import longest_wait_seconds
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.engines.protocols import TrainEngine
from rljob_worker.metrics.reporter import Reporter
from rljob_worker.process.last_words import LastWords
from rljob_worker.process.start_phases import phase
from rljob_worker.runtime.checkpoints import Checkpoints, weights_to_load
from rljob_worker.runtime.control import Control, Follower
from rljob_worker.runtime.figures import StepFigures, idle_role
from rljob_worker.runtime.guest import run_guest
from rljob_worker.runtime.handover import Handover
from rljob_worker.runtime.lead.lead import build_lead
from rljob_worker.runtime.owned_leases import owned_leases
from rljob_worker.runtime.profiling.profiler import build_profiler
from rljob_worker.runtime.setup.devices import device_of_worker, require_devices_of_torch
from rljob_worker.runtime.setup.environment import WorkerEnvironment
from rljob_worker.runtime.setup.plan import plan_of_worker
from rljob_worker.runtime.setup.resources import build_resources, build_validations
from rljob_worker.runtime.setup.world import wait_for_address, world
from rljob_worker.runtime.status import StatusPoster, StopSignal
from rljob_worker.runtime.worker import Worker
from rljob_worker.stages import build_stage
from rljob_worker.stages.received_rows import ReceivedLeases
from rljob_worker.weights.buffers import BufferTransport
from rljob_worker.weights.collective import CollectiveTransport
from rljob_worker.weights.slices import slices_of
from rljob_worker.weights.sync import Transport, build_weight_sync


def run_worker(environment: WorkerEnvironment, stop: StopSignal) -> LastWords:
    """Join the group, run the job to its end, report how it went. Raises RLJobError."""
    plan, group = environment.plan, environment.group_plan
    if group.elastic is not None:
        return run_guest(environment, stop)
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
    with reported_failure() as controls, contextlib.closing(client), stop.passed_on(client.request_stop):
        host = wait_for_address(AddressBook(environment.peers, plan.job), Host(environment.group, 0), deadline)
        attempt = environment.attempt
        joining = world(client, group, environment.rank, host=host, attempt=attempt, deadline_seconds=deadline)
        with contextlib.ExitStack() as stack:
            with phase("world") as progress:
                meeting = stack.enter_context(joining)
                progress.found = f"{group.num_workers} workers of group {group.name}"
            controls.append(control := build_control(environment, client, meeting))
            words = build_worker(environment, client, control).run()
        client.drain(deadline)
    return words


@contextlib.contextmanager
def reported_failure() -> Iterator[list[Control]]:
    """Controls that get to know of an error, once nobody else waits for this worker to let go of anything."""
    controls: list[Control] = []
    try:
        yield controls
    except BaseException:
        for control in controls:
            control.fail()
        raise


def build_control(environment: WorkerEnvironment, client: BufferClient, meeting: str) -> Control:
    """This worker's end of the control. meeting: the address of the store of the group's world."""
    reporter = Reporter.from_environment()
    if not environment.is_lead:
        return Follower(client, environment.ordinal, reporter)
    return build_lead(environment, client, environment.ordinal, reporter, meeting)


def build_worker(environment: WorkerEnvironment, client: BufferClient, control: Control) -> Worker:
    """Collective over the group. Before any model is read, the lead's claims the run and chooses where to go on."""
    plan, group, rank = environment.plan, environment.group_plan, environment.rank
    device, access = device_of_worker(plan, group, environment.local_rank), environment.data_access
    opening = control.open()
    engines = [engine for engine in plan.engines if engine.group == group.name and engine.trainable]
    weights = weights_to_load(opening, plan.spec.checkpoint.init_from, [engine.name for engine in engines])
    plan = plan_of_worker(plan, group.name, access.cache_dir)
    resources = build_resources(plan, group, rank, device, access, weights, environment.home)
    stages = [plan.stage(name) for name in group.schedule]
    schedule = tuple((stage, build_stage(stage, resources)) for stage in stages)
    trainable = {engine.name: resources.train_engines[engine.model] for engine in engines}
    data = joined_identity([dataset.identity for dataset in resources.datasets.values()])
    transports = weight_transports(environment, client, device)
    figures = StepFigures(role=idle_role(plan, group.name))
    return Worker(
        environment=environment,
        client=client,
        resources=resources,
        schedule=schedule,
        handover=Handover(
            plan, group.name, rank, client, longest_wait_seconds(plan), decoders(stages, resources.train_engines)
        ),
        weights=build_weight_sync(
            plan,
            group.name,
            rank,
            transports,
            resources.train_engines,
            resources.rollout_engines,
            slices_of(plan),
            device,
        ),
        validations=build_validations(plan, stages, rank, resources, access),
        checkpoints=Checkpoints(environment, trainable, schedule, data, weights),
        control=control,
        opening=opening,
        figures=figures,
        profiler=build_profiler(environment, figures, device),
        status=StatusPoster(client.set_status),
        leases=owned_leases(plan, group.name, environment.local_rank, client, opening),
        received=ReceivedLeases(client.deliveries) if plan.elastic_group is not None else None,
    )


def decoders(stages: Iterable[StagePlan], engines: Mapping[str, TrainEngine]) -> dict[str, Callable[[Batch], None]]:
    """By stage that computes with rows: what begins to decode their pictures."""
    return {stage.name: engines[model].read_ahead for stage in stages for model in stage.models if model in engines}


def weight_transports(
    environment: WorkerEnvironment, client: BufferClient, device: torch.device
) -> dict[WeightTransport, Transport]:
    """The ways of weights between worker groups, for this worker."""
    deadline = environment.plan.spec.data_buffer.deadline_seconds
    backend = environment.group_plan.backend
    return {
        "DataBuffer": BufferTransport(client),
        "Collective": CollectiveTransport(environment.attempt, backend, device, deadline),
    }
