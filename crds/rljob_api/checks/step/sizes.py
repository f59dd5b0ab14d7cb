"""Do numbers fit together: rows into mini-batches, prompts onto workers, workers into copies of the model?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.checks.subject import Subject, problem
from rljob_api.pipeline.meshes import (
    EngineKind,
    expert_ranks,
    num_replicas,
    num_workers_of,
    ranks_beside_experts,
    ranks_per_copy,
)
from rljob_api.pipeline.resolution import is_elastic, lead_group_of
from rljob_api.vocabulary.problem import Problem

MAX_ROWS = 2**62
"""Rows of all steps of a job, at most; each trajectory may have a few rows."""


def check_mini_batches(subject: Subject) -> Iterator[Problem]:
    """Mini-batches hold whole groups and divide the batch."""
    spec, path = subject.spec, "spec.training.miniBatchRows"
    rows, group_size, total = spec.training.mini_batch_rows, spec.algorithm.group_size, spec.num_rows
    if rows is None:
        return
    if rows > total:
        message = f"a mini-batch is larger than the batch of {_rows_of(subject)}"
        yield problem(path, rows, message, f"Write {total}, or leave it out for the whole batch.")
    elif rows % group_size:
        message = f"a mini-batch holds whole groups, so it is a multiple of groupSize {group_size}"
        yield problem(path, rows, message, _nearest_size(subject))
    elif total % rows:
        message = f"it does not divide the batch of {_rows_of(subject)}"
        yield problem(path, rows, message, _nearest_size(subject))


def check_row_count(subject: Subject) -> Iterator[Problem]:
    """Rows of the whole job have numbers of 8 bytes."""
    spec = subject.spec
    num_rows = spec.num_rows * spec.rows_per_trajectory
    if spec.stop.steps * num_rows > MAX_ROWS:
        message = f"{num_rows} rows a step are more in all than there are numbers for rows, {MAX_ROWS}"
        yield problem("spec.stop.steps", spec.stop.steps, message, f"Write {MAX_ROWS // num_rows} or less.")


def check_workers(subject: Subject) -> Iterator[Problem]:
    """Workers make up whole copies of a model, and each copy gets the same number of prompts."""
    for group, kind in _engines(subject):
        tensor, context, pipeline = ranks_per_copy(subject.spec, kind)
        size = tensor * context * pipeline
        num_workers, index = num_workers_of(subject.spec, group), subject.group_names.index(group)
        per_pod = subject.spec.worker_groups[index].accelerator.count
        dp, left = divmod(num_workers, size)
        if kind == "Rollout" and per_pod % tensor:
            yield problem(
                f"spec.workerGroups[{index}].accelerator.count",
                per_pod,
                f"a copy that generates stays in one pod, and the workers of a pod of group {group} make no whole "
                f"number of copies of rollout.parallelism.tensor {tensor}",
                f"Use a multiple of {tensor} accelerators, or a tensor that divides {per_pod}.",
            )
        elif left:
            yield problem(
                f"spec.workerGroups[{index}]",
                num_workers,
                f"the workers of group {group} make no whole number of copies of tensor {tensor} x context {context}"
                + (f" x pipeline {pipeline}" if pipeline > 1 else ""),
                f"Use a multiple of {size} workers.",
            )
        elif problems := list(_uneven(subject, group, kind, dp)):
            yield from problems
        elif subject.spec.data.batch_size % dp and not is_elastic(subject.spec, group):
            batch_size = subject.spec.data.batch_size
            yield problem(
                "spec.data.batchSize",
                batch_size,
                f"the {dp} workers of group {group} ({'rollout' if kind == 'Rollout' else 'training'}) cannot share "
                f"{batch_size} prompts equally",
                f"Write a multiple of {dp}, such as {max(dp, batch_size // dp * dp)}.",
            )


def _uneven(subject: Subject, group: str, kind: EngineKind | None, copies: int) -> Iterator[Problem]:
    """Problems of `copies` of a model: replicas with unequal numbers of them, experts that one's cannot share."""
    num_workers, replicas = num_workers_of(subject.spec, group), num_replicas(subject.spec, kind)
    expert, (*_, pipeline) = expert_ranks(subject.spec, kind), ranks_per_copy(subject.spec, kind)
    if copies % replicas:
        yield problem(
            "spec.training.parallelism.replicate",
            replicas,
            f"the {copies} copies of the model on the {num_workers} workers of group {group} do not divide into so "
            "many replicas",
            f"Write a divisor of {copies}.",
        )
    elif (sharing := ranks_beside_experts(num_workers, replicas, pipeline)) % expert:
        of_replica = f"a replica of group {group}" if replicas > 1 else f"group {group}"
        of_stage = " that have a pipeline stage" if pipeline > 1 else ""
        yield problem(
            "spec.training.parallelism.expert",
            expert,
            f"the {sharing} workers of {of_replica}{of_stage} cannot share experts in equal runs of so many",
            f"Write a divisor of {sharing}.",
        )


def check_accelerators(subject: Subject) -> Iterator[Problem]:
    """Accelerators per pod that the vendor allows."""
    for path, accelerator in subject.accelerators:
        profile = subject.profiles.get(accelerator.profile)
        if profile is not None and profile.counts and accelerator.count not in profile.counts:
            allowed = ", ".join(map(str, profile.counts))
            message = f"a pod with profile {profile.name} cannot have this many accelerators"
            yield problem(f"{path}.count", accelerator.count, message, f"Write one of {allowed}.")


def check_lengths(subject: Subject) -> Iterator[Problem]:
    """The overlong stretch lies inside the response, and a response has room behind every prompt."""
    overlong, longest = subject.spec.algorithm.overlong, subject.spec.rollout.max_response_tokens
    if overlong is not None and overlong.buffer_tokens >= longest:
        message = f"no length is without penalty: the longest response has rollout.maxResponseTokens {longest}"
        path = "spec.algorithm.overlong.bufferTokens"
        yield problem(path, overlong.buffer_tokens, message, f"Write less than {longest}.")
    most, prompt = subject.spec.rollout.max_sequence_tokens, subject.spec.data.max_prompt_tokens
    if most is not None and most <= prompt:
        message = f"a prompt of data.maxPromptTokens {prompt} would leave no token for its response"
        path = "spec.rollout.maxSequenceTokens"
        yield problem(path, most, message, f"Write more than {prompt}, or a smaller data.maxPromptTokens.")
    elif most is not None and overlong is not None and most < prompt + longest:
        message = "a response to a long prompt would be cut off before the stretch that this punishes"
        fix = "Leave it out, or leave out rollout.maxSequenceTokens."
        yield problem("spec.algorithm.overlong", overlong.to_json(), message, fix)


def _engines(subject: Subject) -> list[tuple[str, EngineKind | None]]:
    """Group and kind of every stage, once each; one problem per layout, the training one before the engine-less one."""
    result: dict[tuple[str, tuple[int, int, int], int, int], EngineKind | None] = {}
    if (owner := _owner_of_generated_rows(subject)) is not None:
        result[(owner, ranks_per_copy(subject.spec, None), 1, 1)] = None
    for name, stage in subject.resolution.stages.items():
        group = subject.placed[name]
        if group in subject.group_names and stage.built_in is not None:
            assert group is not None
            kind: EngineKind | None = "Rollout" if stage.generates else "Train" if stage.models else None
            layout = (ranks_per_copy(subject.spec, kind), expert_ranks(subject.spec, kind))
            result.setdefault((group, *layout, num_replicas(subject.spec, kind)), kind)
    return [(group, kind) for (group, *_), kind in result.items()]


def _owner_of_generated_rows(subject: Subject) -> str | None:
    """The group whose workers share what an elastic group makes."""
    lead = lead_group_of(subject.resolution, subject.placed)
    is_owner = subject.spec.elastic_group is not None and lead in subject.group_names
    return lead if is_owner and not is_elastic(subject.spec, lead) else None


def _rows_of(subject: Subject) -> str:
    spec = subject.spec
    return f"batchSize {spec.data.batch_size} x groupSize {spec.algorithm.group_size} = {spec.num_rows} rows"


def _nearest_size(subject: Subject) -> str:
    """The allowed mini-batch closest to the one given."""
    spec, given = subject.spec, subject.spec.training.mini_batch_rows or 0
    batch_size, group_size = spec.data.batch_size, spec.algorithm.group_size
    sizes = (prompts * group_size for prompts in range(1, batch_size + 1) if batch_size % prompts == 0)
    return f"The nearest size that fits is {min(sizes, key=lambda size: abs(size - given))}."
