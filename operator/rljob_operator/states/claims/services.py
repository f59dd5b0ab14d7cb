"""What is said of the models beside a gang."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_api.v1alpha1.status import ServiceStatus
from rljob_operator.states.situation.conditions import Claim, Reason, no, yes
from rljob_operator.states.situation.situation import Decision, Situation


def claim(situation: Situation, decision: Decision, *, are_wanted: bool) -> Claim:
    """What ServicesReady is; `are_wanted` unless the job has given their places back."""
    services = decision.status.services
    failed = [service for service in services if service.message]
    if failed and (are_wanted or any(item.stopped for item in failed)):
        return no(Reason.SERVICE_FAILED, "; ".join(_failure(item) for item in failed))
    if not are_wanted:
        return no(Reason.SERVICES_STOPPED)
    if all(service.ready for service in services):
        return yes(Reason.SERVICES_HEALTHY)
    stuck = (pod for pod in situation.service_pods if pod.stuck is not None)
    if (pod := next(stuck, None)) is not None and pod.stuck is not None:
        what = "pod" if pod.kind == "Pod" else pod.kind
        return no(pod.stuck.reason, f"{what} {pod.name}: {pod.stuck.message}")
    if lapsed := [service for service in services if service.ready_time is not None and not service.ready]:
        return no(Reason.SERVICE_UNHEALTHY, f"answered, and not now: {_listed(lapsed)}{_why(situation)}")
    return no(Reason.SERVICES_STARTING, f"{unready(services)}{_why(situation)}")


def _failure(service: ServiceStatus) -> str:
    again = f"; start {service.start} follows"
    if service.stopped:
        again = "; no other start follows"
    elif service.start_time is not None:
        again = f"; start {service.start} is under way"
    elif service.next_start_time is not None:
        again = f"; start {service.start} not before {service.next_start_time}"
    return f"service {service.name}: {service.message}{again}"


def unready(services: Sequence[ServiceStatus]) -> str:
    """Which are waited for."""
    return f"not healthy yet: {_listed([service for service in services if not service.ready])}"


def _listed(services: Sequence[ServiceStatus]) -> str:
    return ", ".join(service.name for service in services)


def _why(situation: Situation) -> str:
    message = (pod.unschedulable or pod.says for pod in situation.service_pods)
    return next((f" ({why})" for why in message if why), "")
