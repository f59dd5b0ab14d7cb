"""Can new weights go from training to generation in the way that the job asks for?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.checks.subject import Subject, problem
from rljob_api.pipeline.buffer_capacity import layouts_of, weight_edges
from rljob_api.vocabulary.problem import Problem

BACKENDS = ("gloo", "nccl")
"""Backends of collectives that process groups across worker groups can be made of."""


def check_transport(subject: Subject) -> Iterator[Problem]:
    """The transport is one that the placement of the stages allows."""
    path, asked = "spec.weightSync.transport", subject.spec.weight_sync.transport
    edges = sorted(weight_edges(subject.resolution, layouts_of(subject.resolution, subject.placed)))
    apart = [(source, target) for source, target in edges if source != target]
    if asked == "InProcess" and apart:
        source, target = apart[0]
        message = f"group {source} trains what group {target} generates with, and their workers share no process"
        others = "Auto or DataBuffer" if subject.spec.rollout.max_staleness else "Auto, DataBuffer or Collective"
        yield problem(path, asked, message, f"Write {others}, or do both in one group.")
    if asked in ("DataBuffer", "Collective") and edges and not apart:
        message = f"the workers of group {edges[0][0]} train and generate, so that weights go nowhere"
        yield problem(path, asked, message, "Write Auto or InProcess, or generate in a group of its own.")
    if edges and not apart and subject.spec.weight_sync.delta is not None:
        message = f"the workers of group {edges[0][0]} train and generate (InProcess), so that weights are not sent"
        fix = "Leave it out, or generate in a group of its own."
        yield problem("spec.weightSync.delta", subject.spec.weight_sync.delta.model_dump(by_alias=True), message, fix)
    if asked == "Collective":
        yield from _backends(subject, apart)


def check_staleness(subject: Subject) -> Iterator[Problem]:
    """Generation may run ahead of training: in groups of its own, with weights that are kept and steps to be ahead."""
    spec, path = subject.spec, "spec.rollout.maxStaleness"
    staleness = spec.rollout.max_staleness
    if not staleness:
        return
    if both := _colocated_groups(subject):
        message = f"the workers of group {both[0]} generate and train, so that neither can be ahead of the other"
        fix = "Write two workerGroups and give Rollout or Sample, and Reward, one that trains nothing; or 0."
        yield problem(path, staleness, message, fix)
    if spec.weight_sync.transport == "Collective":
        message = f"broadcasts keep no version, and with rollout.maxStaleness {staleness} several exist at once"
        fix = "Write Auto or DataBuffer, or rollout.maxStaleness 0."
        yield problem("spec.weightSync.transport", "Collective", message, fix)
    if spec.weight_sync.delta is not None:
        message = f"with rollout.maxStaleness {staleness} a checkpoint keeps versions, and changes alone are none"
        delta = spec.weight_sync.delta.model_dump(by_alias=True)
        yield problem("spec.weightSync.delta", delta, message, "Leave it out, or write rollout.maxStaleness 0.")
    if spec.stop.steps <= staleness:
        message = f"the job ends with step {spec.stop.steps}, and all its steps would be drawn with the first weights"
        yield problem(path, staleness, message, f"Write at most {spec.stop.steps - 1}, or more stop.steps.")


def check_staging(subject: Subject) -> Iterator[Problem]:
    """Versions come ahead of their use, into engines of workers that stay."""
    spec = subject.spec
    if spec.weight_sync.staging != "Device":
        return
    message = None
    if not spec.rollout.max_staleness:
        message = "with rollout.maxStaleness 0 no version comes ahead of its use"
    elif spec.elastic_group is not None:
        message = f"pods of the elastic group {spec.elastic_group.name} learn with each lease which version they need"
    elif ROLLOUT_ENGINES[spec.rollout.engine].is_remote:
        message = f"rollout.engine {spec.rollout.engine} has its weights in a server"
    if message is not None:
        yield problem("spec.weightSync.staging", "Device", message, "Write Auto or Host.")


def check_lease_rows(subject: Subject) -> Iterator[Problem]:
    """Only ranks of a group that trains nothing take leases."""
    lease_rows = subject.spec.rollout.lease_rows
    if lease_rows is not None and subject.spec.rollout.partial is not None:
        message = "with rollout.partial rows go on on the worker that drew them, so that workers take no leases"
        yield problem("spec.rollout.leaseRows", lease_rows, message, "Leave it out, or rollout.partial.")
    elif lease_rows is not None and (both := _colocated_groups(subject)):
        message = f"the workers of group {both[0]} generate and train, and draw equal parts of a step, not leases"
        fix = "Leave it out, or write two workerGroups and give Rollout or Sample, and Reward, one that trains nothing."
        yield problem("spec.rollout.leaseRows", lease_rows, message, fix)


def _colocated_groups(subject: Subject) -> list[str]:
    """Groups that generate and train, by name."""
    edges = weight_edges(subject.resolution, layouts_of(subject.resolution, subject.placed))
    return sorted({source for source, _ in edges} & {target for _, target in edges})


def _backends(subject: Subject, apart: list[tuple[str, str]]) -> Iterator[Problem]:
    of_group = {group.name: group.accelerator.profile for group in subject.spec.worker_groups}
    for edge in apart:
        result = [subject.profiles[of_group[group]].backend for group in edge if of_group[group] in subject.profiles]
        if len(result) == 2 and (result[0] != result[1] or result[0] not in BACKENDS):
            message = (
                f"group {edge[0]} has collectives of {result[0]} and group {edge[1]} of {result[1]}; broadcasts "
                "between "
                f"groups need the same on both, one of {', '.join(BACKENDS)}"
            )
            yield problem("spec.weightSync.transport", "Collective", message, "Write Auto or DataBuffer.")
            return
