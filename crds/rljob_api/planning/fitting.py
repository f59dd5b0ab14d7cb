"""What to change in a job so that its workers have room: decided by the Plan's own estimate of memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, gcd

from rljob_api.catalogue import profiles as built_in_profiles
from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.checks.subject import problem
from rljob_api.memory.model_shape import Shapes
from rljob_api.pipeline.meshes import Mesh, ranks_beside_experts
from rljob_api.planning.costs.mesh_costs import mesh_costs
from rljob_api.planning.costs.training_time import training_seconds
from rljob_api.planning.memory.limits import Limits, lacking_bytes, memory_problems
from rljob_api.planning.parallelism_problems import divisors, pipeline_stage_problems, split_sizes
from rljob_api.planning.plan import EnginePlan, Plan
from rljob_api.planning.planner import draft
from rljob_api.v1alpha1 import Checkpointing, OffloadSpec, RLJob, TrainingParallelism, TrainingSpec
from rljob_api.vocabulary.problem import InvalidJobError, Problem

WORTH_CHANGING = 1.1
"""A job that fits is changed for what is predicted to be faster by more than this."""
MOST_HOSTS = 1024
"""Hosts of a group that a refusal looks at, at most."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A job that fits, and what of it was changed."""

    job: RLJob
    changes: Mapping[str, str]
    """By path the value in YAML; none where the job fits as it is."""
    seconds: float
    """Predicted: how long a worker trains and scores in a step."""
    seconds_as_written: float | None = None
    """Predicted for the job as it is, where that fits."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """As `--set` has them."""
        return tuple(f"{path}={value}" for path, value in self.changes.items())


def fit(job: RLJob, shapes: Shapes, profiles: Mapping[str, AcceleratorProfile] = built_in_profiles.DEFAULT) -> Fit:
    """The job in the way that is predicted to take least time of those that fit, or as it is where that is within a
    tenth of it: smaller micro-batches, activations that are computed again, a model that is spread over workers, an
    optimizer or parameters that wait in the memory of the host. No change is made to what is learned.

    Raises InvalidJobError for a job that is wrong, for one whose memory is not known, and for one that no change makes
    fit, with what it takes at least and the number of hosts on which it would fit.
    """
    made, limits = draft(job, profiles, shapes)
    if unknown := list(_unknown(made, limits)):
        raise InvalidJobError(unknown)
    search = _Search(shapes, profiles)
    asked = _Tried(job, made, limits, search.seconds(made))
    as_written = None if asked.problems else asked.seconds
    best = search.best(asked)
    if as_written is not None and (best is None or as_written <= best.seconds * WORTH_CHANGING):
        return Fit(job, {}, as_written, as_written)
    if best is not None:
        return Fit(best.job, _changes(job.spec.training, best.job.spec.training), best.seconds, as_written)
    hosts = _hosts(search.smallest.job, shapes, profiles)
    lacking = memory_problems(search.smallest.plan, search.smallest.limits, hosts_help=hosts is not None)
    raise InvalidJobError([_refused(item, hosts) for item in lacking])


@dataclass(frozen=True, slots=True)
class _Tried:
    """A job, and what its workers would have in memory."""

    job: RLJob
    plan: Plan
    limits: Limits
    seconds: float

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


class _Search:
    """Over meshes, what waits on hosts, checkpointing and micro-batches. The largest micro-batches with everything kept
    take least time on a mesh: once that is more than the best that fits, no other way on it or on the next is
    better."""

    def __init__(self, shapes: Shapes, profiles: Mapping[str, AcceleratorProfile]) -> None:
        self._shapes, self._profiles = shapes, profiles
        self._smallest: list[_Tried] = []

    @property
    def smallest(self) -> _Tried:
        """What came closest to having room."""
        return min(self._smallest, key=lambda item: (item.lacking, item.peak))

    def seconds(self, plan: Plan) -> float:
        """Predicted for a step."""
        speeds = {group.name: self._profiles[group.profile].speed for group in plan.groups}
        return training_seconds(plan, self._shapes, speeds)

    def best(self, asked: _Tried) -> _Tried | None:
        """Whichever takes least time of all that fit; the first of equal ones."""
        best: _Tried | None = None
        for spread in self._meshes(asked):
            if best is not None and self._least_seconds(spread) >= best.seconds:
                break
            for offload in _offloads(spread.job.spec.training.memory.offload, spread.plan):
                for result in self._fitting(_with_memory(spread.job, offload=offload)):
                    best = result if best is None or result.seconds < best.seconds else best
        return best

    def _meshes(self, asked: _Tried) -> list[_Tried]:
        """The job on the mesh that it asks for and on all that it can have, that of least time first."""
        parallelism = asked.job.spec.training.parallelism
        others = (
            self._tried(_with(asked.job, parallelism=other))
            for other in _parallelisms(asked.job, asked.plan, self._shapes)
            if other != parallelism
        )
        return sorted((asked, *filter(None, others)), key=self._least_seconds)

    def _least_seconds(self, spread: _Tried) -> float:
        """Without what checkpointing and hosts add, if the job leaves them to the plan."""
        if _checkpointing(spread.job) == ("Full",) or not any(engine.recomputes for engine in spread.plan.engines):
            return spread.seconds
        kept = [engine.model_copy(update={"recomputes": False}) for engine in spread.plan.engines]
        plan = spread.plan.model_copy(update={"engines": tuple(kept)})
        return self.seconds(plan.model_copy(update={"meshes": mesh_costs(plan, self._shapes, spread.limits)}))

    def _fitting(self, job: RLJob) -> Iterator[_Tried]:
        """The largest micro-batches that fit, with activations computed again and with all of them kept."""
        training = job.spec.training
        longest = job.spec.data.max_prompt_tokens + job.spec.rollout.max_response_tokens
        least = ceil(longest / training.parallelism.context)
        for checkpointing in _checkpointing(job):
            kept = _with_memory(job, activation_checkpointing=checkpointing)
            sizes = list(_halves(training.tokens_per_micro_batch, least))
            smallest = self._tried(_with(kept, tokens_per_micro_batch=sizes[-1]))
            if smallest is None or smallest.problems:
                self._smallest += [] if smallest is None else [smallest]
                continue
            tried = (self._tried(_with(kept, tokens_per_micro_batch=size)) for size in sizes)
            yield from _first_of_each(result for result in tried if result is not None and not result.problems)

    def _tried(self, job: RLJob) -> _Tried | None:
        """None where the job is wrong in another way, such as prompts that copies cannot share."""
        try:
            plan, limits = draft(job, self._profiles, self._shapes)
        except InvalidJobError:
            return None
        return _Tried(job, plan, limits, self.seconds(plan))


def _unknown(plan: Plan, limits: Limits) -> Iterator[Problem]:
    for index, group in enumerate(plan.groups):
        result = next((item for item in plan.memory if item.group == group.name), None)
        if result is not None and result.unknown:
            listed = ", ".join(result.unknown)
            fix = "Give a directory that is here, with the config.json of an architecture that rljob knows."
            yield problem("spec.models", listed, "nobody knows how large this model is", fix)
        elif result is not None and group.name not in limits:
            message = f"nobody knows how much memory a worker of {group.name} has"
            fix = "Set limits.memory of the container worker in its template."
            if group.device != "cpu":
                fix = "Name a profile that says its memory, such as nvidia-h100, or write memory into this one."
            yield problem(f"spec.workerGroups[{index}]", group.profile, message, fix)


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


def _with(job: RLJob, **changes: object) -> RLJob:
    """The job with other fields of its training."""
    training = job.spec.training.model_copy(update=changes)
    return job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})})


def _first_of_each(tried: Iterable[_Tried]) -> Iterator[_Tried]:
    """The first in which some engines compute activations again, and the first in which none does."""
    before: bool | None = None
    for result in tried:
        recomputes = any(engine.recomputes for engine in result.plan.engines)
        if recomputes != before:
            yield result
        if not recomputes:
            return
        before = recomputes


def _with_memory(job: RLJob, **changes: object) -> RLJob:
    return _with(job, memory=job.spec.training.memory.model_copy(update=changes))


def _checkpointing(job: RLJob) -> tuple[Checkpointing, ...]:
    """Which ways there are. `Auto` has it where it helps, so that there is no other."""
    asked = job.spec.training.memory.activation_checkpointing
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
