"""Situations in one line each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rljob_api.tests.builders import make_job
from rljob_api.v1alpha1.status import RLJobStatus
from rljob_operator.observe import Ended, PodFacts
from rljob_operator.states import Situation
from rljob_operator.states.situation import PlanName
from rljob_operator.timestamps import timestamp

NOW = 1_800_000_000.0
TWO_PODS = "workerGroups=[{name: train, replicas: 2}]"


def ago(seconds: float) -> str:
    """A time of the past."""
    return timestamp(NOW - seconds)


def pod(host: int = 0, attempt: int = 1, **facts: Any) -> PodFacts:
    """A ready pod."""
    name = f"small-train-{host}-a{attempt}"
    known = {"node": "node1", "address": "10.0.0.1", "is_ready": True, **facts}
    return PodFacts(name=name, uid=f"uid-{name}", group="train", attempt=attempt, **known)


def dead(code: int, host: int = 0, message: str = "", reason: str = "Error", **facts: Any) -> PodFacts:
    """A pod whose worker has ended."""
    ended = Ended("worker", code, reason, message)
    return pod(host, is_ready=False, is_over=True, ended=ended, **facts)


def pending(*overrides: str, **status: Any) -> Situation:
    """A job without pods."""
    spec = make_job(*overrides).spec
    return Situation("small", spec, RLJobStatus(**status), NOW, plan=PlanName("abc", "small-plan-abc"))


def alive(*pods: PodFacts, overrides: tuple[str, ...] = (TWO_PODS,), **status: Any) -> Situation:
    """A job whose first attempt runs since 100 s."""
    known = {"phase": "Running", "attempt": 1, "pods_created_time": ago(110), "ready_time": ago(100), **status}
    return replace(pending(*overrides, **known), pods=pods)
