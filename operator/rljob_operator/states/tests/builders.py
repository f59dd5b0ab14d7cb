"""Situations in one line each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rljob_api.tests.builders import make_job
from rljob_api.v1alpha1.infrastructure import WorkerGroupSpec
from rljob_api.v1alpha1.status import ConditionType, FailureStatus, RLJobStatus
from rljob_operator.states import Decision, Situation
from rljob_operator.states.situation.conditions import condition
from rljob_operator.states.situation.facts import Admission, AdmissionState, PodFacts, Termination
from rljob_operator.states.situation.situation import PlanName
from rljob_operator.vocabulary.timestamps import timestamp

NOW = 1_800_000_000.0
WAITING = Admission(AdmissionState.WAITING, "3 jobs are before it")
EVICTED = Admission(AdmissionState.EVICTED, "preempted")
TWO_PODS = "workerGroups=[{name: train, replicas: 2}]"


def ago(seconds: float) -> str:
    """A time of the past."""
    return timestamp(NOW - seconds)


def pod(host: int = 0, attempt: int = 1, **facts: Any) -> PodFacts:
    """A ready pod."""
    name = f"small-train-{host}-a{attempt}"
    known = {"node": "node1", "address": "10.0.0.1", "is_ready": True, **facts}
    if "ends_at" in facts:
        known = {"grace_seconds": 30, **known}
    return PodFacts(name=name, uid=f"uid-{name}", group="train", attempt=attempt, **known)


def dead(
    code: int, host: int = 0, message: str = "", reason: str = "Error", step: int | None = None, **facts: Any
) -> PodFacts:
    """A pod whose worker has ended."""
    ended = Termination("worker", code, reason, message, step)
    return pod(host, is_ready=False, is_over=True, ended=ended, **facts)


def pending(*overrides: str, **status: Any) -> Situation:
    """A job without pods."""
    spec = make_job(*overrides).spec
    return Situation("small", spec, RLJobStatus(**status), NOW, plan=PlanName("abc", "small-plan-abc"))


def alive(*pods: PodFacts, overrides: tuple[str, ...] = (TWO_PODS,), **status: Any) -> Situation:
    """A job whose first attempt runs since 100 s."""
    known = {"phase": "Running", "attempt": 1, "pods_created_time": ago(110), "ready_time": ago(100), **status}
    return replace(pending(*overrides, **known), pods=pods)


def with_groups(situation: Situation, **replicas: int) -> Situation:
    """A copy whose groups have these numbers of pods, whether or not these could share a batch."""
    groups = tuple(WorkerGroupSpec(name=name, replicas=count) for name, count in replicas.items())
    return replace(situation, spec=situation.spec.model_copy(update={"worker_groups": groups}))


def failing(code: int, seconds_ago: float = 3, **more: Any) -> FailureStatus:
    """What was noted of the first attempt a while ago."""
    known = {"pod": "small-train-0-a1", "container": "worker", "cause": "PodFailed", **more}
    return FailureStatus(attempt=1, exit_code=code, time=ago(seconds_ago), **known)


def changed(situation: Situation, decision: Decision) -> dict[str, Any]:
    """What a decision writes anew of all that the operator remembers of a job."""
    shown = ("conditions", "observed_generation", "worker_groups", "ready", "last_failure", "progress")
    before = dict(situation.status)
    return {name: value for name, value in decision.status if name not in shown and value != before[name]}


def said(decision: Decision, type_: ConditionType) -> tuple[str, str, str]:
    """(status, reason, message) of a condition."""
    result = condition(decision.status.conditions, type_)
    assert result is not None, f"no condition {type_}"
    return result.status, result.reason, result.message
