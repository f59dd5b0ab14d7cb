"""How much memory a worker has, and what is said of a plan that takes more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.checks.subject import problem
from rljob_api.memory.phases import PhaseMemory
from rljob_api.planning.plan import EnginePlan, GroupPlan, Plan
from rljob_api.vocabulary.keys import CONTAINER_WORKER
from rljob_api.vocabulary.problem import Problem
from rljob_api.vocabulary.quantity import amount, format_bytes, parse_quantity

PROCESS_BYTES = 512 << 20
"""A worker's memory besides its models: Python and its libraries."""
DEVICE_BYTES = 1 << 30
"""Memory of an accelerator that its driver and the workspaces of its libraries take."""
AXIS_BYTES = 256 << 20
"""Buffers of the communicators along an axis of a mesh: of the axis alone, and of it together with others."""
FRAGMENTED = 1 / 20
"""Part of an accelerator's memory that its allocator has lost between blocks of different sizes."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Bytes that one worker has."""

    bytes: int
    source: str
    """Where that is said."""
    beside: int
    """Bytes of them that it takes besides its models."""

    @property
    def usable(self) -> int:
        return self.bytes - self.beside


Limits = Mapping[str, Limit]
"""By group; those of which nothing is known are left out."""


def limits_of(plan: Plan) -> Limits:
    """What the accelerator has, or on CPUs a worker's part of the pod's limit."""
    limits = {group.name: _limit_of(plan, group) for group in plan.groups}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _limit_of(plan: Plan, group: GroupPlan) -> Limit | None:
    if group.device != "cpu":
        if group.device_memory is None:
            return None
        memory = parse_quantity(group.device_memory)
        return Limit(memory, f"profile {group.profile}", _beside_models(plan, group, memory))
    return _of_container(plan, group)


def _beside_models(plan: Plan, group: GroupPlan, memory: int) -> int:
    """Bytes of an accelerator that nothing can be planned in: 5 to 10 % of one with 80 GiB."""
    meshes = {engine.mesh for engine in plan.engines if engine.group == group.name}
    axes = max((sum(size > 1 for size in mesh.to_json().values()) for mesh in meshes), default=0)
    return DEVICE_BYTES + axes * AXIS_BYTES + int(memory * FRAGMENTED)


def _of_container(plan: Plan, group: GroupPlan) -> Limit | None:
    """A worker's part of what the template of its pod allows."""
    template = next(
        worker_group.template for worker_group in plan.spec.worker_groups if worker_group.name == group.name
    )
    containers = (template.get("spec") or {}).get("containers") or ()
    resources = [
        container.get("resources") or {} for container in containers if container.get("name") == CONTAINER_WORKER
    ]
    # what is null in a template takes our default away, which is not a limit either
    given = next((memory for resource in resources if (memory := (resource.get("limits") or {}).get("memory"))), None)
    if given is None:
        return None
    return Limit(
        int(amount(given)) // group.workers_per_host, "its part of the container's limits.memory", PROCESS_BYTES
    )


@dataclass(frozen=True, slots=True)
class _Need:
    """What a worker of a group takes, and what it has."""

    index: int
    group: GroupPlan
    most: PhaseMemory
    limit: Limit | None
    outside: PhaseMemory
    """The phase with most in the memory of its host."""
    host: Limit | None

    @property
    def lacking(self) -> tuple[int, int]:
        """Bytes beyond its limits: where it computes, and of its host."""
        here = 0 if self.limit is None else max(0, self.most.peak - self.limit.usable)
        return here, 0 if self.host is None else max(0, self.outside.host - self.host.usable)


def _needs(plan: Plan, limits: Limits) -> Iterator[_Need]:
    phases = {item.group: item.phases for item in plan.memory if item.phases}
    for index, group in enumerate(plan.groups):
        if group.name in phases:
            most = max(phases[group.name], key=lambda phase: phase.peak)
            outside = max(phases[group.name], key=lambda phase: phase.host)
            yield _Need(index, group, most, limits.get(group.name), outside, _of_container(plan, group))


def lacking_bytes(plan: Plan, limits: Limits) -> tuple[int, int]:
    """What one worker of each group would need beyond what it has, and beyond what its host has."""
    here, host = zip(*(need.lacking for need in _needs(plan, limits)), strict=True)
    return sum(here), sum(host)


def memory_problems(plan: Plan, limits: Limits, hosts_help: bool = True) -> Iterator[Problem]:
    """One problem for each group with a worker that does not fit, or that offloads more to its host than that has.

    hosts_help: whether more hosts may be proposed.
    """
    for need in _needs(plan, limits):
        if need.limit is not None and need.most.peak > need.limit.usable:
            yield _too_much(plan, need.index, need.most, need.limit, hosts_help)
        if need.host is not None and need.outside.host > need.host.usable:
            yield _too_much_outside(need, need.host, hosts_help)


def _too_much_outside(need: _Need, host: Limit, hosts_help: bool) -> Problem:
    """For what a worker has in the memory of its host."""
    waits = "wait in its host's memory while the accelerator does without"
    fix = f"Raise the limit{', or add replicas, over which weights and optimizer are divided' * hosts_help}."
    if need.outside.phase == "sync":
        waits = "lie in its host's memory while weights come, with the tensors that are put together there"
    if need.outside.phase == "load":
        waits = "lie in its host's memory at the start, with what it reads of the model that it generates with"
        fix = "Raise the limit."
    return problem(
        f"spec.workerGroups[{need.index}].template",
        None,
        f"for a worker of {need.group.name} {format_bytes(need.outside.host)} {waits}, and {host.source} gives it "
        f"{format_bytes(host.bytes)}, {format_bytes(host.beside)} of them for what is besides its models",
        fix,
    )


def _too_much(plan: Plan, index: int, most: PhaseMemory, limit: Limit, hosts_help: bool) -> Problem:
    """most: the phase that does not fit."""
    group = plan.groups[index]
    parts = {name: getattr(most, name) for name in PARTS if getattr(most, name)}
    listed = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())
    doing = "write a checkpoint" if most.phase == "checkpoint" else most.phase
    return problem(
        f"spec.workerGroups[{index}]",
        group.profile,
        f"a worker of {group.name} needs {format_bytes(most.peak + limit.beside)} to {doing} ({listed}, "
        f"and {format_bytes(limit.beside)} besides its models), and {limit.source} gives it "
        f"{format_bytes(limit.bytes)}",
        _fix(plan, group, most, limit, hosts_help),
    )


PARTS = (
    "weights",
    "optimizer",
    "gradients",
    "activations",
    "logits",
    "pictures",
    "cache",
    "checkpoint",
    "delta",
    "staged",
)
"""Parts of a phase's memory, in the order in which they are shown."""


def _fix(plan: Plan, group: GroupPlan, phase: PhaseMemory, limit: Limit, hosts_help: bool) -> str:
    """The fields that would help, those that give most first."""
    if phase.staged and sum(getattr(phase, part) for part in PARTS) - phase.staged <= limit.usable:
        return "Write weightSync.staging: Host, or lower rollout.memoryFraction."
    if phase.cache > phase.weights + phase.optimizer:
        return "Lower rollout.maxResponseTokens or data.maxPromptTokens: not one row of this length has room."
    trained = [engine for engine in plan.engines if engine.group == group.name and engine.trainable]
    helps = ["raise the limit"] * (group.device == "cpu")
    if 4 * phase.activations > phase.peak:
        helps.append("lower training.tokensPerMicroBatch")
        helps += ["set training.memory.activationCheckpointing: Auto"] * (not any(item.recomputes for item in trained))
        helps += ["share rows between workers (training.parallelism.context)"] * (group.num_workers > 1)
    if trained and trained[0].mesh.rp > 1 and 2 * (phase.weights + phase.optimizer) > phase.peak:
        helps.append("lower training.parallelism.replicate")
    if trained and group.device != "cpu" and 2 * (phase.weights + phase.optimizer) > phase.peak:
        offload = trained[0].offload
        helps += ["set training.memory.offload.optimizer: true"] * (not offload.optimizer)
        helps += ["set training.memory.offload.parameters: true"] * (not offload.parameters)
    layers = 2 * (phase.weights + phase.gradients) > phase.peak and phase.phase == "train" and group.num_workers > 1
    if layers and trained and trained[0].mesh.tp == trained[0].mesh.ep == 1:
        helps.append("split layers between workers (training.parallelism.tensor, or expert where a model has experts)")
    if 4 * phase.checkpoint > phase.peak and phase.phase != "checkpoint":
        helps.append("leave checkpoint.everySteps out")
    if 4 * phase.delta > phase.peak:
        helps.append("leave weightSync.delta out")
    copies = [engine for engine in plan.engines if engine.group == group.name and engine.kind == "Rollout"]
    if (
        copies
        and 2 * phase.weights > phase.peak
        and (phase.phase in ("load", "generate") or phase.cache or not hosts_help)
    ):
        helps.append(_smaller_copies(copies[0]))
    elif hosts_help:
        helps.append(
            f"give group {group.name} more replicas or accelerators, over which weights and optimizer are divided"
        )
    said = ", or ".join(helps or ["use accelerators with more memory"])
    return f"{said[0].upper()}{said[1:]}."


def _smaller_copies(engine: EnginePlan) -> str:
    """Who generates has a whole copy of the model or, where the engine spreads it, a part of one in the same pod."""
    can = [item.name for item in ROLLOUT_ENGINES.built_in.values() if item.spreads]
    library = "" if ROLLOUT_ENGINES[engine.library].spreads else f"rollout.engine: {' or '.join(can)} and "
    return f"share the model that generates between the accelerators of a pod ({library}rollout.parallelism.tensor)"
