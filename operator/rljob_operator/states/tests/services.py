"""Models beside a job in one line each: their pods, and what is written of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rljob_api.v1alpha1.status import ServiceStatus
from rljob_operator.states import Decision, Situation
from rljob_operator.states.situation.facts import PodFacts, Termination
from rljob_operator.states.tests.builders import ago, alive, pending, pod

JUDGE = "services=[{name: judge, run: 'mine:app'}]"
TWO = "services=[{name: judge, run: 'mine:app'}, {name: my_model, run: 'mine:app'}]"


def model(start: int = 1, service: str = "judge", **facts: Any) -> PodFacts:
    """The pod of a service, which answers."""
    name = f"small-{service.replace('_', '.')}-r{start}"
    known = {"node": "node1", "is_ready": True, **facts}
    if "ends_at" in facts:
        known = {"grace_seconds": 5, **known}
    return PodFacts(name=name, uid=f"uid-{name}", group="", attempt=0, service=service, start=start, **known)


def broken(code: int = 1, message: str = "", start: int = 1, **facts: Any) -> PodFacts:
    """The pod of a service that ended."""
    ended = Termination("service", code, "Error", message)
    return model(start, is_ready=False, is_over=True, ended=ended, **facts)


def status(start: int = 1, service: str = "judge", **changes: Any) -> ServiceStatus:
    """Status of a service whose pod runs since 100 s, and answers."""
    known = {"start_time": ago(100), "ready": True, "ready_time": ago(90), **changes}
    return ServiceStatus(name=service, start=start, **known)


def begun(
    *models: PodFacts, overrides: tuple[str, ...] = (JUDGE,), services: tuple[ServiceStatus, ...] = (), **changes: Any
) -> Situation:
    """An attempt that has its number and no pod."""
    situation = pending(*overrides, phase="Starting", attempt=1, pending_time=ago(50), services=services, **changes)
    return replace(situation, service_pods=models)


def training(*models: PodFacts, services: tuple[ServiceStatus, ...] = (), **changes: Any) -> Situation:
    """A gang that runs beside its model."""
    return replace(alive(pod(0), overrides=(JUDGE,), services=services, **changes), service_pods=models)


def service_of(decision: Decision, name: str = "judge") -> ServiceStatus:
    """What is written of it."""
    return next(service for service in decision.status.services if service.name == name)
