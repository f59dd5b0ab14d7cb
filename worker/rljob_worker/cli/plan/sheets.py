"""What a plan says, as tables. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rljob_api.catalogue import profiles as built_in_profiles
from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.memory.model_shape import Shapes
from rljob_api.memory.phases import GroupMemory
from rljob_api.planning.costs.traffic import EdgeTraffic, expected_bytes
from rljob_api.planning.memory.limits import PARTS
from rljob_api.planning.plan import EnginePlan, GroupPlan, Plan, StagePlan
from rljob_api.planning.weights.arrival import Bound, WeightArrival, weight_arrivals
from rljob_api.planning.weights.flows import WeightFlow, slot_bytes, slots_per_source, weight_flows
from rljob_api.planning.weights.version_sizes import VersionSizes, version_sizes
from rljob_api.vocabulary.quantity import format_bytes
from rljob_worker.cli.plan.meshes import mesh_sheets, mesh_text
from rljob_worker.cli.plan.sheet import NOTHING, Sheet


def plan_heading(plan: Plan) -> str:
    """What a step is, and how many there are."""
    spec = plan.spec
    rows = f"{spec.data.batch_size} prompts x {spec.algorithm.group_size} responses = {spec.num_rows} rows"
    return (
        f"{plan.job}: {spec.algorithm.name}, {rows} and {spec.num_optimizer_steps} optimizer "
        f"step{'s' if spec.num_optimizer_steps > 1 else ''} per step, {spec.stop.steps} steps"
    )


def sheets_of(
    plan: Plan, shapes: Shapes, profiles: Mapping[str, AcceleratorProfile] = built_in_profiles.DEFAULT
) -> Iterator[Sheet]:
    """Groups, models beside the job, stages, engines, meshes, edges, weights, versions, memory. shapes: of the models
    whose configs are at hand, by path. profiles: by which links have a speed."""
    yield _groups(plan)
    if plan.spec.services:
        yield _services(plan)
    yield _stages(plan)
    yield _engines(plan)
    yield from mesh_sheets(plan)
    yield _edges(plan)
    yield _weights(plan)
    if arrivals := tuple(weight_arrivals(plan, shapes, profiles)):
        yield _arriving_weights(arrivals)
    if sizes := tuple(version_sizes(plan, shapes)):
        yield _versions(plan.staleness, sizes)
    yield from (_memory(plan.group(memory.group), memory) for memory in plan.memory)


def _groups(plan: Plan) -> Sheet:
    rows = []
    for group in plan.groups:
        lead = " (lead)" if group.name == plan.lead_group else ""
        ranks = "0" if group.num_workers == 1 else f"0-{group.num_workers - 1}"
        pods, name = str(group.replicas), group.name + lead
        if group.elastic is not None:  # each of its pods is a world of its own
            pods, name = f"{group.elastic.min}-{group.elastic.max}", f"{group.name} (elastic)"
            ranks = "0" if group.workers_per_host == 1 else f"0-{group.workers_per_host - 1} each"
        workers = f"{pods} x {group.workers_per_host}"
        schedule = ", ".join(_scheduled(plan, group))
        rows.append((name, pods, workers, ranks, group.device, group.backend, schedule))
    headers = ("group", "pods", "workers", "ranks", "device", "backend", "schedule")
    return Sheet("Worker groups", headers, tuple(rows))


def _scheduled(plan: Plan, group: GroupPlan) -> list[str]:
    """The stages of a group, with those of which it only receives the rows in brackets."""
    received = {stage.name for stage in plan.stages if stage.generated_in not in (None, group.name)}
    return [f"({name})" if name in received else name for name in group.schedule]


def _services(plan: Plan) -> Sheet:
    rows = []
    for service in plan.spec.services:
        bounds, accelerator = service.autoscaling, service.worker_group.accelerator
        copies = (
            str(service.worker_group.replicas) if bounds is None else f"{bounds.min_replicas}-{bounds.max_replicas}"
        )
        rows.append((service.name, service.run, copies, f"{accelerator.count} x {accelerator.profile}"))
    return Sheet("Models beside the job", ("service", "runs", "copies", "each on"), tuple(rows))


def _stages(plan: Plan) -> Sheet:
    headers = ("stage", "runs", "group", "mesh", "after", "reads", "writes", "balance")
    return Sheet("Stages", headers, tuple(map(_stage_cells, plan.stages)))


def _stage_cells(stage: StagePlan) -> tuple[str, ...]:
    runs = f"{stage.run} on {', '.join(stage.models)}" if stage.models else stage.run
    columns = (_listed(stage.after), _listed(stage.reads), _listed(stage.writes))
    balance = NOTHING if stage.balance == "None" else stage.balance
    group = stage.group if stage.generated_in is None else f"{stage.generated_in}, rows to {stage.group}"
    return stage.name, runs, group, mesh_text(stage.mesh), *columns, balance


def _engines(plan: Plan) -> Sheet:
    headers = ("engine", "library", "model", "group", "mesh", "trained")
    return Sheet("Engines", headers, tuple(map(_engine_cells, plan.engines)))


def _engine_cells(engine: EnginePlan) -> tuple[str, ...]:
    model = f"{engine.model} ({engine.path})"
    trained = "yes" if engine.trainable else ""
    if engine.adapter is not None:
        trained = f"adapter of rank {engine.adapter.rank}"
    if engine.base_of is not None:
        model += f": {engine.base_of} with its adapter off"
    trained = ", ".join(filter(None, (trained, *_savings(engine))))
    return engine.name, engine.library, model, engine.group, mesh_text(engine.mesh), trained


def _savings(engine: EnginePlan) -> Iterator[str]:
    """What takes time in place of memory, or at the first step in place of every step."""
    if engine.recomputes:
        yield "activations computed again"
    if engine.compiles:
        yield "layers compiled"
    if waiting := [name for name in ("parameters", "optimizer") if getattr(engine.offload, name)]:
        yield f"{' and '.join(waiting)} on the host"


def _edges(plan: Plan) -> Sheet:
    traffic = expected_bytes(plan)
    rows: list[tuple[str, ...]] = [
        (edge.name, edge.transport, _listed(edge.columns), *_byte_cells(traffic[edge.name], edge.transport))
        for edge in plan.edges
    ]
    total, worst = (sum(getattr(item, name) for item in traffic.values()) for name in ("typical", "worst"))
    rows.append(("all", "", "", f"about {format_bytes(total)}", format_bytes(worst)))
    return Sheet("Edges", ("edge", "transport", "columns", "bytes per step", "at most"), tuple(rows))


def _byte_cells(traffic: EdgeTraffic, transport: str) -> tuple[str, str]:
    if transport == "Local":
        return "none", "none"
    return f"about {format_bytes(traffic.typical)}", format_bytes(traffic.worst)


def _weights(plan: Plan) -> Sheet:
    flows = {flow.name: flow for flow in weight_flows(plan)}
    rows = []
    for weight in plan.weights:
        cells = _flow_cells(plan, flows[weight.name]) if weight.name in flows else (NOTHING, "none")
        rows.append((weight.name, weight.source, weight.target, weight.transport, *cells))
    headers = ("edge", "from", "to", "transport", "senders", "of dataBuffer.memory")
    return Sheet("Weights", headers, tuple(rows))


def _flow_cells(plan: Plan, flow: WeightFlow) -> tuple[str, str]:
    """The senders, and what the slots take on the host that has most of them."""
    senders = f"{len(flow.source_ranks)} of {flow.source.num_workers} workers"
    slot = slot_bytes(plan)
    if flow.transport != "DataBuffer" or slot is None:
        return senders, "none"
    num_slots = max(flow.most_sources(group.name) * slots_per_source(plan, group.name) for group in plan.groups)
    return senders, f"{format_bytes(num_slots * slot)} ({num_slots} x {format_bytes(slot)})"


_BOUNDS: Mapping[Bound, str] = {
    "links": "links: more of them, or of senders",
    "cores": "cores: more for data buffers",
    "threads": "threads of a data buffer",
    "parent": "connections: more hosts that send",
    "chunks": "chunks: more dataBuffer.memory for larger ones",
    "loading": "loading: more tensor ranks",
}
"""What takes longest, and what to raise."""
_PROCESSORS: Sequence[Bound] = ("cores", "threads", "parent", "chunks")


def _arriving_weights(arrivals: Sequence[WeightArrival]) -> Sheet:
    """What each worker that generates takes of a version, and for how long nothing is decoded."""
    sizes, seconds = ("a worker takes", "its host takes"), ("over links", "by processors", "loaded")
    headers = ("edge", "into group", *sizes, *seconds, "decoding", "bound by")
    return Sheet("A version of weights", headers, tuple(map(_arrival_cells, arrivals)))


def _arrival_cells(arrival: WeightArrival) -> tuple[str, ...]:
    by_processors = max((arrival.seconds[item] for item in _PROCESSORS if item in arrival.seconds), default=None)
    seconds = map(_seconds, (arrival.seconds.get("links"), by_processors, arrival.loading_seconds))
    there = {"Device": "goes on until it is on the device", "Host": "goes on until it is there", None: "stands still"}
    pause = there[arrival.staged]
    if arrival.pause_seconds is not None:
        pause += f"{', then stands still' * (arrival.staged is not None)} {_seconds(arrival.pause_seconds)}"
    sizes = format_bytes(arrival.worker_bytes), format_bytes(arrival.host_bytes)
    bound = NOTHING if arrival.bound is None else _BOUNDS[arrival.bound]
    return arrival.name, arrival.group, *sizes, *seconds, pause, bound


def _seconds(number: float | None) -> str:
    return NOTHING if number is None else f"{number:.2g} s"


def _versions(staleness: int, sizes: Sequence[VersionSizes]) -> Sheet:
    """What a checkpoint has of each policy besides the weights in training, and what the store of a host has."""
    title = f"Versions of weights, rollout.maxStaleness {staleness}"
    headers = ("policy", "one version", "a checkpoint keeps", "the store holds", "on a host of", "its slots have")
    return Sheet(title, headers, tuple(map(_version_cells, sizes)))


def _version_cells(sizes: VersionSizes) -> tuple[str, ...]:
    kept = _counted(sizes.num_kept, sizes.kept_bytes) if sizes.num_kept else "nothing: checkpoint.versions is Redraw"
    stored = _counted(sizes.num_stored, sizes.stored_bytes)
    one = "unknown: no config.json at hand" if sizes.model_bytes is None else format_bytes(sizes.model_bytes)
    return sizes.model, one, kept, stored, sizes.group, format_bytes(sizes.room)


def _counted(count: int, size: int | None) -> str:
    versions = f"{count} version{'s' * (count > 1)}"
    return versions if size is None else f"{versions}, {format_bytes(size)}"


def _memory(group: GroupPlan, memory: GroupMemory) -> Sheet:
    """The memory of one worker by parts. Parts that are most at different times add up to more than the peak."""
    title = f"Memory of a worker of {memory.group}"
    if memory.unknown:
        return Sheet(
            title, (), ((f"unknown: no config.json at hand that tells the sizes of {', '.join(memory.unknown)}",),)
        )
    sizes = {part: [getattr(phase, part) for phase in memory.phases] for part in (*PARTS, "peak", "host")}
    rows = tuple((part, *map(_bytes_or_none, item)) for part, item in sizes.items() if any(item))
    if memory.room is not None:
        rows += (("room", *(format_bytes(memory.room) for _ in memory.phases)),)
    elif group.device != "cpu":
        title += f" (not checked: profile {group.profile} does not say how much there is)"
    return Sheet(title, ("", *(phase.phase for phase in memory.phases)), rows)


def _bytes_or_none(count: int) -> str:
    return format_bytes(count) if count else NOTHING


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or NOTHING
