"""What to change in a job so that its workers have room: decided by the Plan's own estimate of memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import ceil

from rljob_api.catalogue import profiles as built_in_profiles
from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.checks.subject import problem
from rljob_api.planning.limits import Limits, memory_problems
from rljob_api.planning.memory import Shapes
from rljob_api.planning.plan import Plan
from rljob_api.planning.planner import draft
from rljob_api.planning.spreading import context_sizes
from rljob_api.v1alpha1 import Checkpointing, OffloadSpec, RLJob, TrainingMemorySpec, TrainingSpec
from rljob_api.vocabulary.problem import InvalidJobError, Problem

MOST_HOSTS = 1024
"""Of a group, that a refusal looks at."""


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
    then sequences shared by workers, then an optimizer that waits in the memory of the host, then parameters that do,
    too. No change is made to what is learned.

    Raises InvalidJobError for a job that is wrong, for one whose memory is not known, and for one that no change makes
    fit, with what it takes at least and the number of hosts on which it would fit.
    """
    made, limits = draft(job, profiles, shapes)
    if unknown := list(_unknown(made, limits)):
        raise InvalidJobError(unknown)
    least = list(memory_problems(made, limits))
    for candidate in _candidates(job, shapes, made):
        found = _tried(candidate, shapes, profiles)
        if found == []:
            return Fit(candidate, _changes(job.spec.training, candidate.spec.training))
        least = found or least
        smallest = candidate if found else job
    hosts = _hosts(smallest, shapes, profiles)
    raise InvalidJobError([_refused(each, hosts) for each in least])


def _unknown(plan: Plan, limits: Limits) -> Iterator[Problem]:
    for index, group in enumerate(plan.groups):
        found = next((each for each in plan.memory if each.group == group.name), None)
        if found is not None and found.unknown:
            listed = ", ".join(found.unknown)
            fix = "Give a directory that is here, with its config.json."
            yield problem("spec.models", listed, "nobody knows how large this model is", fix)
        elif found is not None and group.name not in limits:
            message = f"nobody knows how much memory a worker of {group.name} has"
            fix = "Set limits.memory of the container worker in its template."
            yield problem(f"spec.workerGroups[{index}]", group.profile, message, fix)


def _candidates(job: RLJob, shapes: Shapes, plan: Plan) -> Iterator[RLJob]:
    """The job itself first, the least that can be asked for last."""
    spec = job.spec
    training, own = spec.training, spec.training.tokens_per_micro_batch
    longest = spec.data.max_prompt_tokens + spec.rollout.max_response_tokens
    trained = [shapes[engine.path] for engine in plan.engines if engine.trainable]
    contexts = [size for size in context_sizes(trained[0]) if size >= training.parallelism.context] if trained else [1]
    for offload, context in product(_offloads(training.memory.offload, plan), contexts):
        parallelism = training.parallelism.model_copy(update={"context": context})
        for checkpointing in _checkpointing(training.memory.activation_checkpointing):
            memory = TrainingMemorySpec(activation_checkpointing=checkpointing, offload=offload)
            for tokens in _halves(own, ceil(longest / context)):
                update = {"tokens_per_micro_batch": tokens, "memory": memory, "parallelism": parallelism}
                changed = training.model_copy(update=update)
                yield job.model_copy(update={"spec": spec.model_copy(update={"training": changed})})


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


def _tried(job: RLJob, shapes: Shapes, profiles: Mapping[str, AcceleratorProfile]) -> list[Problem] | None:
    """What does not fit; None where the job is wrong in another way, such as ranks that a group does not have."""
    try:
        made, limits = draft(job, profiles, shapes)
    except InvalidJobError:
        return None
    return list(memory_problems(made, limits))


def _changes(before: TrainingSpec, after: TrainingSpec) -> dict[str, str]:
    old, new = _written(before), _written(after)
    return {path: value for path, value in new.items() if value != old[path]}


def _written(training: TrainingSpec) -> dict[str, str]:
    """What may be changed, as YAML has it."""
    memory = training.memory
    return {
        "training.tokensPerMicroBatch": str(training.tokens_per_micro_batch),
        "training.memory.activationCheckpointing": memory.activation_checkpointing,
        "training.parallelism.context": str(training.parallelism.context),
        "training.memory.offload.optimizer": str(memory.offload.optimizer).lower(),
        "training.memory.offload.parameters": str(memory.offload.parameters).lower(),
    }


def _hosts(job: RLJob, shapes: Shapes, profiles: Mapping[str, AcceleratorProfile]) -> dict[str, int] | None:
    """Of each group, hosts on which the job fits when every group that lacks memory is doubled until it does not."""
    while True:
        try:
            made, limits = draft(job, profiles, shapes)
        except InvalidJobError:
            return None
        lacking = {each.path for each in memory_problems(made, limits)}
        groups = job.spec.worker_groups
        if not lacking:
            return {group.name: group.replicas for group in groups}
        more = tuple(
            group.model_copy(update={"replicas": 2 * group.replicas})
            if f"spec.workerGroups[{index}]" in lacking
            else group
            for index, group in enumerate(groups)
        )
        if any(group.replicas > MOST_HOSTS for group in more):
            return None
        job = job.model_copy(update={"spec": job.spec.model_copy(update={"worker_groups": more})})


def _refused(lacks: Problem, hosts: Mapping[str, int] | None) -> Problem:
    message = f"whatever is set in training, {lacks.message}"
    if hosts is None:
        return problem(
            lacks.path, lacks.found, message, f"No number of hosts helps: {lacks.fix[0].lower()}{lacks.fix[1:]}"
        )
    listed = ", ".join(f"{name} {count}" for name, count in hosts.items())
    return problem(lacks.path, lacks.found, message, f"It would fit with replicas of groups: {listed}.")
