"""Can pods that generate come and go: bounds, and everything else that an elastic worker group cannot have?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.catalogue.stages import REWARD_MODEL
from rljob_api.checks.subject import Subject, problem
from rljob_api.v1alpha1 import WorkerGroupSpec
from rljob_api.vocabulary.problem import Problem

_FIXED = "Leave {path}.elastic out and write replicas: the group then has a fixed number of pods."


def check_elastic_bounds(subject: Subject) -> Iterator[Problem]:
    """At most one elastic group, with bounds in order, and `generators` within them."""
    spec, first = subject.spec, subject.spec.elastic_group
    for i, group in enumerate(spec.worker_groups):
        if group.elastic is None:
            continue
        path = f"spec.workerGroups[{i}]"
        if first is not None and group.name != first.name:
            message = f"group {first.name} is elastic already, and spec.generators is the number of pods of one group"
            yield problem(f"{path}.elastic", group.elastic.to_json(), message, "Leave it out here, and write replicas.")
        if group.elastic.max < group.elastic.min:
            message = f"the most pods are fewer than the least, min {group.elastic.min}"
            fix = f"Write {group.elastic.min} or more, or a smaller min."
            yield problem(f"{path}.elastic.max", group.elastic.max, message, fix)
        if group.replicas != 1:
            message = "the pods of an elastic group are as many as spec.generators says"
            yield problem(f"{path}.replicas", group.replicas, message, "Leave it out, and write spec.generators.")
    yield from _generators(subject, first)


def _generators(subject: Subject, group: WorkerGroupSpec | None) -> Iterator[Problem]:
    path, asked = "spec.generators", subject.spec.generators
    if asked is None:
        return
    if group is None or group.elastic is None:
        message = "no worker group is elastic, so that each has the replicas that it says"
        fix = "Leave it out, or write elastic: {min: 1, max: 4} in the group that generates."
        yield problem(path, asked, message, fix)
        return
    least, most = group.elastic.min, group.elastic.max
    if least <= most and not least <= asked <= most:
        message = f"elastic group {group.name} has from {least} to {most} pods"
        yield problem(path, asked, message, f"Write a number from {least} to {most}.")


def check_elastic_stages(subject: Subject) -> Iterator[Problem]:
    """An elastic group generates, rewards what it generated, and does nothing else."""
    group = subject.spec.elastic_group
    if group is None or None in subject.placed.values():
        return
    path = f"spec.workerGroups[{subject.group_names.index(group.name)}].elastic"
    here = [subject.resolution.stages[name] for name, home in subject.placed.items() if home == group.name]
    runs = [stage.spec.run for stage in here]
    others = [stage for stage in here if stage.spec.run not in ("Rollout", "Reward")]
    if len(subject.group_names) == 1:
        message = "the only worker group trains, too, and training needs all its pods"
        yield problem(path, True, message, "Write elastic in a second group, named rollout, that trains nothing.")
        return
    for stage in others:
        message = f"stage {stage.name} runs in elastic group {group.name}, whose pods only run Rollout and then Reward"
        fix = "Give the stage another group." if stage.spec.run != "Sample" else _dynamic_fix(subject)
        yield problem(subject.stage_path(stage.name, "group"), stage.spec.run, message, fix)
    if not others and (runs.count("Rollout") != 1 or runs.count("Reward") > 1):
        message = f"the pods of elastic group {group.name} run one Rollout, and at most one Reward after it"
        yield problem(path, runs, message, "Give it one Rollout and its Reward, and other stages another group.")
        return
    for stage in here:
        source = [item.name for item in here if item.spec.run == "Rollout"]
        if stage.spec.run == "Reward" and list(stage.spec.after) != source:
            message = f"in elastic group {group.name} rewards are computed right after the responses were generated"
            fix = f"Write after: [{', '.join(source)}], or give the stage another group."
            yield problem(subject.stage_path(stage.name, "after"), list(stage.spec.after), message, fix)
        if stage.spec.balance != "None":
            message = f"rows of elastic group {group.name} lie where their numbers say, so nothing is balanced"
            yield problem(subject.stage_path(stage.name, "balance"), stage.spec.balance, message, "Leave balance out.")


def _dynamic_fix(subject: Subject) -> str:
    if subject.spec.algorithm.sampling.dynamic:
        return "Write algorithm.sampling.dynamic: false, or leave elastic out."
    return "Write one stage with run: Rollout and one with run: Reward for Sample, or leave elastic out."


def check_elastic_job(subject: Subject) -> Iterator[Problem]:
    """What other parts of a job do not go with pods that come and go."""
    group, spec = subject.spec.elastic_group, subject.spec
    if group is None:
        return
    fixed = _FIXED.format(path=f"workerGroups[{subject.group_names.index(group.name)}]")
    if spec.rollout.max_staleness == 0:
        message = f"elastic group {group.name} takes parts of a step while others are trained on"
        yield problem("spec.rollout.maxStaleness", 0, message, f"Write 1 or more. {fixed}")
        if spec.weight_sync.transport == "Collective":
            message = f"broadcasts wait for every pod, and those of elastic group {group.name} come and go"
            yield problem("spec.weightSync.transport", "Collective", message, f"Write Auto or DataBuffer. {fixed}")
    if spec.rollout.partial is not None:
        message = f"rows wait for later steps on the pod that drew them, and those of elastic group {group.name} go"
        yield problem("spec.rollout.partial", spec.rollout.partial.to_json(), message, f"Leave it out. {fixed}")
    if spec.rollout.simulator is not None:
        message = f"episodes on the pods of elastic group {group.name} are not built yet"
        yield problem("spec.rollout.simulator", spec.rollout.simulator.to_json(), message, f"Leave it out. {fixed}")
    for i, reward in enumerate(spec.rewards):
        if reward.run == REWARD_MODEL:
            message = f"a stage computes this reward in the gang, and elastic group {group.name} adds rewards up"
            fix = f"Serve the model beside the job (spec.services), or call a function. {fixed}"
            yield problem(f"spec.rewards[{i}].run", reward.run, message, fix)
    if len(spec.policies) > 1:
        message = f"elastic group {group.name} generates for one policy, and this job trains {', '.join(spec.policies)}"
        yield problem("spec.dag.stages", list(spec.policies), message, f"Train one policy. {fixed}")
    yield from _successes(subject, group.name)


def _successes(subject: Subject, group: str) -> Iterator[Problem]:
    for i, name in enumerate(subject.spec.success_policy.groups):
        if name == group:
            message = "pods of an elastic group end when the job does, and say nothing about it"
            yield problem(f"spec.successPolicy.groups[{i}]", name, message, "Name groups that are not elastic.")
