"""Are names well formed, unique, and names of something?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rljob_api.catalogue.columns import IMAGES, ROLLOUT_COLUMNS, ROUTES
from rljob_api.catalogue.stages import REWARD_MODEL, STAGES, USER_STAGE
from rljob_api.catalogue.trackers import TRACKERS
from rljob_api.checks.subject import Subject, problem
from rljob_api.v1alpha1 import Metadata, RewardSpec, StageSpec
from rljob_api.vocabulary.problem import Problem, suggestion

MAX_NAME_LENGTH = 40
"""Pods are called JOB-GROUP-HOST and must stay a DNS label of 63 characters."""

_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


def check_metadata(metadata: Metadata) -> Iterator[Problem]:
    """The job's name."""
    name = metadata.name
    if _DNS_LABEL.fullmatch(name) is None:
        yield problem(
            "metadata.name",
            name,
            "a name is lower-case letters, digits and dashes, with a letter or digit at both ends",
            f"Write {_as_label(name)}.",
        )
    elif len(name) > MAX_NAME_LENGTH:
        yield problem(
            "metadata.name",
            name,
            f"a name has at most {MAX_NAME_LENGTH} characters, this one has {len(name)}",
            f"Write {_as_label(name)}.",
        )


def check_unique(subject: Subject) -> Iterator[Problem]:
    """Names within one list."""
    spec = subject.spec
    yield from _unique("spec.models", (model.name for model in spec.models))
    yield from _unique("spec.rewards", (reward.name for reward in spec.rewards))
    yield from _unique("spec.services", (service.name for service in spec.services))
    yield from _unique("spec.workerGroups", subject.group_names)
    yield from _unique("spec.env", (variable.name for variable in spec.env))
    for kind, datasets in (("train", spec.data.train), ("validation", spec.data.validation)):
        yield from _unique(f"spec.data.{kind}", (dataset.name for dataset in datasets))
    if spec.dag is not None:
        yield from _unique("spec.dag.stages", (stage.name for stage in spec.dag.stages))


def check_references(subject: Subject) -> Iterator[Problem]:
    """Names of profiles and reward functions, and in stages, names of other things."""
    for path, accelerator in subject.accelerators:
        if accelerator.profile not in subject.profiles:
            fix = suggestion(accelerator.profile, subject.profiles)
            yield problem(f"{path}.profile", accelerator.profile, "there is no such profile", fix)
    for i, reward in enumerate(subject.spec.rewards):
        if USER_STAGE.match(reward.run) is None and reward.run != REWARD_MODEL:
            yield problem(
                f"spec.rewards[{i}].run",
                reward.run,
                f"a reward is a Python function written as module:function, or {REWARD_MODEL}",
                "Write for example rljob_worker.rewards:math_answer.",
            )
        for place, column in _columns_named(reward):
            yield from _column_problems(subject, f"spec.rewards[{i}].{place}", column)
        for field, result in (("retries", reward.retries), ("backoffSeconds", reward.backoff_seconds)):
            default = type(reward).model_fields["retries" if field == "retries" else "backoff_seconds"].default
            if reward.on_error != "Retry" and result != default:
                message = f"with onError {reward.on_error} no call is made again"
                fix = "Write onError: Retry, or leave it out."
                yield problem(f"spec.rewards[{i}].{field}", result, message, fix)
    for i, name in enumerate(subject.spec.monitoring.trackers):
        yield from TRACKERS.problems(f"spec.monitoring.trackers[{i}]", name)
    for i, name in enumerate(subject.spec.success_policy.groups):
        if name not in subject.group_names:
            fix = suggestion(name, subject.group_names)
            yield problem(f"spec.successPolicy.groups[{i}]", name, "there is no such worker group", fix)
    if subject.spec.dag is not None:
        for stage in subject.spec.dag.stages:
            yield from _stage_references(subject, stage)


def _columns_named(reward: RewardSpec) -> list[tuple[str, str]]:
    """Columns of the data that a reward names, each with the field that does."""
    own = [] if reward.column is None else [("column", reward.column)]
    return [*own, *((f"columns[{i}]", column) for i, column in enumerate(reward.columns))]


def _column_problems(subject: Subject, path: str, column: str) -> Iterator[Problem]:
    """What a reward cannot have as a column of the data."""
    shown = {subject.spec.data.images_column: "pictures", subject.spec.data.videos_column: "videos"}
    if column in shown:
        message = (
            f"a reward function gets {shown[column]} as its argument `{shown[column]}`, not as a column of the data"
        )
        yield problem(path, column, message, "Leave it out.")
    elif column in (*ROLLOUT_COLUMNS, *ROUTES, IMAGES, "rewards", "advantages"):
        message = "a stage of the catalogue writes a column of this name"
        yield problem(path, column, message, "Call the data's column something else.")


def _stage_references(subject: Subject, stage: StageSpec) -> Iterator[Problem]:
    stage_names = [item.name for item in subject.resolution.declared]
    if stage.run not in STAGES and USER_STAGE.match(stage.run) is None:
        fix = suggestion(stage.run, STAGES) + " Your own stage is written module:function."
        message = "the catalogue has no such stage"
        yield problem(subject.stage_path(stage.name, "run"), stage.run, message, fix)
    for i, name in enumerate(stage.after):
        path = subject.stage_path(stage.name, f"after[{i}]")
        if name == stage.name:
            yield problem(path, name, "a stage cannot come after itself", "Leave it out.")
        elif name not in stage_names and name != subject.missing_source:
            others = [other for other in stage_names if other != stage.name]
            yield problem(path, name, "there is no such stage", suggestion(name, others))
    for i, name in enumerate(stage.models):
        if name not in subject.model_names:
            path = subject.stage_path(stage.name, f"models[{i}]")
            yield problem(path, name, "there is no such model", suggestion(name, subject.model_names))
    if stage.group is not None and stage.group not in subject.group_names:
        path = subject.stage_path(stage.name, "group")
        yield problem(
            path,
            stage.group,
            "there is no such worker group",
            suggestion(stage.group, subject.group_names),
        )


def _unique(path: str, names: Iterable[str | None]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if name is not None and first.setdefault(name, i) != i:
            message = f"the name is taken by {path}[{first[name]}]"
            yield problem(f"{path}[{i}].name", name, message, "Give each its own name.")


def _as_label(name: str) -> str:
    label = re.sub(r"[^a-z0-9]+", "-", name.lower().removesuffix(".yaml"))[:MAX_NAME_LENGTH].strip("-")
    return label or "my-job"
