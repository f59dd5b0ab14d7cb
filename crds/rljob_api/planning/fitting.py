"""What to change in a job so that its workers have room: decided by the Plan's own estimate of memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, gcd

from rljob_api.catalogue import profiles as built_in_profiles
from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.checks.subject import problem
from rljob_api.pipeline.meshes import Mesh, ranks_beside_experts
from rljob_api.planning.limits import Limits, lacking_bytes, memory_problems
from rljob_api.planning.memory import Shapes
from rljob_api.planning.parallelism_problems import divisors, pipeline_stage_problems, split_sizes
from rljob_api.planning.plan import EnginePlan, Plan
from rljob_api.planning.planner import draft
from rljob_api.v1alpha1 import Checkpointing, OffloadSpec, RLJob, TrainingParallelism, TrainingSpec
from rljob_api.vocabulary.problem import InvalidJobError, Problem

MOST_HOSTS = 1024
"""Hosts of a group that a refusal looks at, at most."""
BETWEEN_HOSTS = 8
"""How much longer a byte takes there than within a host: an accelerator's part of the network against its links."""
OPERATIONS = 1000
"""As many take as long as a byte within a host: what an accelerator reaches in matrix products against its links."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A job that fits, and what of it was changed."""

    job: RLJob
    changes: Mapping[str, str]
    """By path the value in YAML; none where the job fits as it is."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """As `--set` has them."""
        return tuple(f"{path}={value}" for path, value in self.changes.items())


def fit(job: RLJob, shapes: Shapes, profiles: Mapping[str, AcceleratorProfile] = built_in_profiles.DEFAULT) -> Fit:
    """The first change that fits of those that cost least time: smaller micro-batches, then activations computed again,
    then a model that is spread over workers, then an optimizer that waits in the memory of the host, then parameters
    that do, too. No change is made to what is learned.

    Raises InvalidJobError for a job that is wrong, for one whose memory is not known, and for one that no change makes
    fit, with what it takes at least and the number of hosts on which it would fit.
    """
    made, limits = draft(job, profiles, shapes)
    if unknown := list(_unknown(made, limits)):
        raise InvalidJobError(unknown)
    tried = [_Tried(job, made, limits)]
    for meant in _spread(job, shapes, profiles, made):
        candidates = list(_candidates(meant))
        least = _tried(candidates[-1], shapes, profiles)
        if least is None or least.problems:
            tried += [] if least is None else [least]
            continue
        fits = (
            result
            for candidate in candidates
            if (result := _tried(candidate, shapes, profiles)) and not result.problems
        )
        result = next(fits)
        return Fit(result.job, _changes(job.spec.training, result.job.spec.training))
    smallest = min(tried, key=lambda item: (item.lacking, item.peak))
    hosts = _hosts(smallest.job, shapes, profiles)
    lacking = memory_problems(smallest.plan, smallest.limits, hosts_help=hosts is not None)
    raise InvalidJobError([_refused(item, hosts) for item in lacking])


@dataclass(frozen=True, slots=True)
class _Tried:
    """A job, and what its workers would have in memory."""

    job: RLJob
    plan: Plan
    limits: Limits

    @property
    def problems(self) -> list[Problem]:
        return list(memory_problems(self.plan, self.limits))

    @property
    def lacking(self) -> tuple[int, int]:
        """Bytes beyond what one worker of each group has, and beyond what its host has."""
        return lacking_bytes(self.plan, self.limits)

    @property
    def peak(self) -> int:
        """Bytes of one worker of each group."""
        return sum(max(phase.peak for phase in group.phases) for group in self.plan.memory)

    @property
    def cost(self) -> float:
        """How long a worker sends in a step to those it shares models with, and waits for them, as bytes within a
        host."""
        axes = [(mesh, axis) for mesh in self.plan.meshes for axis in mesh.axes]
        sent = sum(axis.sent * (BETWEEN_HOSTS if axis.crosses_hosts else 1) for _, axis in axes)
        return sent + sum(mesh.operations * (axis.waits or 0) for mesh, axis in axes) / OPERATIONS


def _unknown(plan: Plan, limits: Limits) -> Iterator[Problem]:
    for index, group in enumerate(plan.groups):
        result = next((item for item in plan.memory if item.group == group.name), None)
        if result is not None and result.unknown:
            listed = ", ".join(result.unknown)
            fix = "Give a directory that is here, with its config.json."
            yield problem("spec.models", listed, "nobody knows how large this model is", fix)
        elif result is not None and group.name not in limits:
            message = f"nobody knows how much memory a worker of {group.name} has"
            fix = "Set limits.memory of the container worker in its template."
            yield problem(f"spec.workerGroups[{index}]", group.profile, message, fix)


def _spread(job: RLJob, shapes: Shapes, profiles: Mapping[str, AcceleratorProfile], plan: Plan) -> Iterator[RLJob]:
    """The job on the mesh that it asks for, then on others that it can have, those first that cost least; and then on
    all of them with more that waits on the host."""
    yield job
    asked = job.spec.training
    others = (
        _with(job, parallelism=parallelism)
        for parallelism in _parallelisms(job, plan, shapes)
        if parallelism != asked.parallelism
    )
    result = [tried for other in others if (tried := _tried(other, shapes, profiles)) is not None]
    spread = [item.job for item in sorted(result, key=lambda item: item.cost)]
    yield from spread
    for offload in _offloads(asked.memory.offload, plan):
        if offload != asked.memory.offload:
            memory = asked.memory.model_copy(update={"offload": offload})
            yield from (_with(item, memory=memory) for item in (job, *spread))


def _parallelisms(job: RLJob, plan: Plan, shapes: Shapes) -> Iterator[TrainingParallelism]:
    """Whatever divides workers and models, and is not less than the job asks for. Matrices are split within a pod, and
    replicas are whole pods; where the job asks for some, fewer may have room."""
    asked, engines = job.spec.training.parallelism, [engine for engine in plan.engines if engine.kind == "Train"]
    models = [shapes[engine.path] for engine in engines]
    groups = [plan.group(engine.group) for engine in engines]
    workers, pods = (gcd(*(getattr(item, name) for item in groups)) for name in ("num_workers", "workers_per_host"))
    experts = gcd(*(1 if model.experts is None else model.experts.count for model in models))
    tensors = [size for size in divisors(pods) if all(size in split_sizes(model) for model in models)]
    pipelines = [
        size for size in divisors(workers) if all(_has_pipeline_stages(engine, size, shapes) for engine in engines)
    ]
    replicas = divisors(gcd(*(item.replicas for item in groups)))
    for tensor, pipeline, expert in product(tensors, pipelines, divisors(gcd(workers, experts))):
        copies, left = divmod(workers, tensor * pipeline)
        for context, replicate in () if left else product(divisors(copies), replicas):
            if copies // context % replicate or ranks_beside_experts(workers, replicate, pipeline) % expert:
                continue
            sizes = {"tensor": tensor, "context": context, "pipeline": pipeline, "expert": expert}
            if all(size >= getattr(asked, axis) for axis, size in sizes.items()):
                yield asked.model_copy(update={**sizes, "replicate": replicate})


def _has_pipeline_stages(engine: EnginePlan, count: int, shapes: Shapes) -> bool:
    """Whether a model can be split into `count` pipeline stages."""
    cut = engine.model_copy(update={"mesh": Mesh(pp=count)})
    return count == 1 or (engine.library == "Megatron" and not any(pipeline_stage_problems(cut, shapes[engine.path])))


def _candidates(job: RLJob) -> Iterator[RLJob]:
    """The job itself first, the least that can be asked for last."""
    training = job.spec.training
    longest = job.spec.data.max_prompt_tokens + job.spec.rollout.max_response_tokens
    least = ceil(longest / training.parallelism.context)
    for checkpointing in _checkpointing(training.memory.activation_checkpointing):
        memory = training.memory.model_copy(update={"activation_checkpointing": checkpointing})
        for tokens in _halves(training.tokens_per_micro_batch, least):
            yield _with(job, tokens_per_micro_batch=tokens, memory=memory)


def _with(job: RLJob, **changes: object) -> RLJob:
    """The job with other fields of its training."""
    training = job.spec.training.model_copy(update=changes)
    return job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})})


def _checkpointing(asked: Checkpointing) -> tuple[Checkpointing, ...]:
    """A job that leaves it to the plan has it where it helps."""
    return ("None", "Full") if asked == "None" else (asked,)


def _offloads(asked: OffloadSpec, plan: Plan) -> Iterable[OffloadSpec]:
    """From what the job asks for up; more is of no use on CPUs."""
    on_cpus = all(plan.group(engine.group).device == "cpu" for engine in plan.engines if engine.kind == "Train")
    more = (asked, asked.model_copy(update={"optimizer": True}), OffloadSpec(optimizer=True, parameters=True))
    return more[:1] if on_cpus else dict.fromkeys(more)


def _halves(most: int, least: int) -> Iterator[int]:
    """From `most` down; below the longest row there is nothing to gain."""
    while most > least:
        yield most
        most = max(most // 2, least)
    yield most


def _tried(job: RLJob, shapes: Shapes, profiles: Mapping[str, AcceleratorProfile]) -> _Tried | None:
    """None where the job is wrong in another way, such as prompts that copies cannot share."""
    try:
        return _Tried(job, *draft(job, profiles, shapes))
    except InvalidJobError:
        return None


def _changes(before: TrainingSpec, after: TrainingSpec) -> dict[str, str]:
    old, new = _written(before), _written(after)
    return {path: value for path, value in new.items() if value != old[path]}


def _written(training: TrainingSpec) -> dict[str, str]:
    """What may be changed, as YAML has it."""
    memory = training.memory
    return {
        "training.tokensPerMicroBatch": str(training.tokens_per_micro_batch),
        "training.memory.activationCheckpointing": memory.activation_checkpointing,
        **{f"training.parallelism.{axis}": str(size) for axis, size in training.parallelism},
        "training.memory.offload.optimizer": str(memory.offload.optimizer).lower(),
        "training.memory.offload.parameters": str(memory.offload.parameters).lower(),
    }


def _hosts(job: RLJob, shapes: Shapes, profiles: Mapping[str, AcceleratorProfile]) -> dict[str, int] | None:
    """Hosts per group on which the job fits, found by doubling every group that lacks memory until none does."""
    while True:
        try:
            made, limits = draft(job, profiles, shapes)
        except InvalidJobError:
            return None
        lacking = [memory_problem.path for memory_problem in memory_problems(made, limits)]
        groups = job.spec.worker_groups
        if not lacking:
            return {group.name: group.replicas for group in groups}
        more = tuple(
            group.model_copy(update={"replicas": 2 * group.replicas})
            if any(path.startswith(f"spec.workerGroups[{index}]") for path in lacking)  # it, or the template of its pod
            else group
            for index, group in enumerate(groups)
        )
        if any(group.replicas > MOST_HOSTS for group in more):
            return None
        job = job.model_copy(update={"spec": job.spec.model_copy(update={"worker_groups": more})})


def _refused(lacks: Problem, hosts: Mapping[str, int] | None) -> Problem:
    message = f"whatever is set in training, {lacks.message}"
    if hosts is None:
        return replace(lacks, message=message, fix=f"No number of hosts helps: {lacks.fix[0].lower()}{lacks.fix[1:]}")
    listed = ", ".join(f"{name} {count}" for name, count in hosts.items())
    return replace(lacks, message=message, fix=f"It would fit with replicas of groups: {listed}.")
