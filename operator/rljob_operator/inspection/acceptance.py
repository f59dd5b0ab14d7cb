"""What of a spec is in force: that of the plan that runs, with today's values of the fields that may change.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.lifetime.changes import immutable_changes, raises_steps
from rljob_api.loading.load import job_from_object
from rljob_api.pipeline.resolution import with_precision
from rljob_api.planning.plan import Plan
from rljob_api.planning.planner import plan
from rljob_api.v1alpha1 import RLJob, RLJobSpec
from rljob_api.v1alpha1.infrastructure import LifecycleSpec
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.problem import InvalidJobError, Problem
from rljob_operator.manifests.context import WrittenPlan
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.situation import Refusal

Profiles = Mapping[str, AcceleratorProfile]


@dataclass(frozen=True)
class Accepted:
    """A job that can run."""

    job: RLJob
    """With the spec that is in force."""
    written: WrittenPlan
    """The plan that an attempt which begins now runs."""
    changes: str = ""
    """Changes that are of no effect."""


def accept(body: Mapping[str, Any], running: Plan | None, profiles: Profiles) -> Accepted | Refusal:
    """The job of an object, or why it cannot run.  `running` is the plan of its last attempt."""
    try:
        job = job_from_object(body, profiles)
    except InvalidJobError as error:
        if running is None:
            return Refusal(refusal_reason(error.problems), str(error), is_final=is_final(error.problems))
        return _unchanged(body, running, profiles, str(error))
    if running is None:
        return _planned(job, "", profiles)
    spec = in_force(running.spec, job.spec)
    changes = "; ".join(map(str, immutable_changes(spec, with_precision(job.spec, profiles))))
    return _planned(job.model_copy(update={"spec": spec}), changes, profiles)


def in_force(accepted: RLJobSpec, today: RLJobSpec) -> RLJobSpec:
    """`accepted` with the fields that may change as they are today."""
    max_restarts = today.failure_policy.max_restarts
    priority = today.scheduling.priority_class_name
    steps = today.stop.steps if raises_steps(accepted, today) else accepted.stop.steps
    return accepted.model_copy(
        update={
            "stop": accepted.stop.model_copy(update={"steps": steps}),
            "suspend": today.suspend,
            "generators": today.generators,
            "lifecycle": today.lifecycle,
            "failure_policy": accepted.failure_policy.model_copy(update={"max_restarts": max_restarts}),
            "scheduling": accepted.scheduling.model_copy(update={"priority_class_name": priority}),
        }
    )


def plan_from_config_map(config_map: Mapping[str, Any] | None) -> WrittenPlan | None:
    """The plan in its ConfigMap, also of another version; None where there is none that this operator can read."""
    text = ((config_map or {}).get("data") or {}).get(keys.PLAN_KEY)
    if not text:
        return None
    try:
        return WrittenPlan.read(text)
    except ValueError:
        return None


def lenient_spec(body: Mapping[str, Any]) -> RLJobSpec:
    """The spec of a job that is refused: enough of it for deadlines, suspension and cleaning up.

    One whose very structure is wrong has no worker groups here, for it never had pods.
    """
    try:
        return RLJobSpec.model_validate(body)
    except ValidationError:
        known: dict[str, Any] = {
            "worker_groups": (),
            "suspend": bool(body.get("suspend")),
            "lifecycle": _lifecycle(body.get("lifecycle")),
        }
        return RLJobSpec.model_construct(**known)


def _lifecycle(body: Any) -> LifecycleSpec:
    try:
        return LifecycleSpec.model_validate(body or {})
    except ValidationError:
        return LifecycleSpec()


def refusal_reason(problems: Iterable[Problem]) -> Reason:
    """One word for all problems: what only another spec can mend comes before what the operator may yet learn."""
    kinds = [_kind(problem) for problem in problems]
    return next((kind for kind in kinds if kind is not Reason.UNKNOWN_PROFILE), Reason.UNKNOWN_PROFILE)


def is_final(problems: Iterable[Problem]) -> bool:
    """Whether only another spec would help: a profile may yet be added to the operator."""
    return refusal_reason(problems) is not Reason.UNKNOWN_PROFILE


def _kind(problem: Problem) -> Reason:
    if problem.path.startswith("spec.dag"):
        return Reason.INVALID_DAG
    of_pods = problem.path.startswith(("spec.workerGroups[", "spec.services["))
    if of_pods and problem.path.endswith(".accelerator.profile"):
        return Reason.UNKNOWN_PROFILE
    return Reason.INVALID_SPEC


def _planned(job: RLJob, changes: str, profiles: Profiles) -> Accepted | Refusal:
    try:
        return Accepted(job, WrittenPlan.of(plan(job, profiles)), changes)
    except InvalidJobError as error:
        return Refusal(refusal_reason(error.problems), str(error), is_final=is_final(error.problems))


def _within(running: Plan, generators: Any) -> int | None:
    """The number of generators that comes nearest to what is asked for, which an API server without rules took."""
    group = running.elastic_group
    if group is None or group.elastic is None or not isinstance(generators, int):
        return None
    return min(max(generators, group.elastic.min), group.elastic.max)


def _unchanged(body: Mapping[str, Any], running: Plan, profiles: Profiles, why: str) -> Accepted | Refusal:
    """A job that ran and is no longer valid goes on as it was accepted, unless it is suspended."""
    spec = body.get("spec") or {}
    mutable = {"suspend": bool(spec.get("suspend")), "generators": _within(running, spec.get("generators"))}
    changed = {**body, "spec": {**running.spec.to_json(), **mutable}}
    try:
        job = job_from_object(changed, profiles)
    except InvalidJobError as error:
        return Refusal(refusal_reason(error.problems), str(error), is_final=is_final(error.problems))
    return _planned(job, f"the spec is no longer valid, and the job goes on as it was accepted: {why}", profiles)
