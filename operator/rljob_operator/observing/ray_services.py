"""From a RayService as KubeRay writes it to what a decision needs to know of it.  Pure, and nothing raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rljob_api.vocabulary import keys
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_operator.manifests.serving.template import GRACE_SECONDS
from rljob_operator.names import parse_ray_service_name
from rljob_operator.observing.pods import finalizers_of, pod_facts
from rljob_operator.observing.values import MAX_MESSAGE_LENGTH, mapping, mappings, moment, text_value
from rljob_operator.states.situation.facts import PodFacts, Termination

Object = Mapping[str, Any]

INVALID = "ValidationFailed"
"""The reason of its condition Ready where KubeRay refuses what we wrote."""


def ray_service_facts(ray_service: Object, pods: Sequence[Object]) -> PodFacts:
    """The facts of one of ours; `pods` are those that KubeRay has made for the service, which have its label."""
    metadata, status = mapping(ray_service.get("metadata")), mapping(ray_service.get("status"))
    name, service = (
        text_value(metadata.get("name")),
        text_value(mapping(metadata.get("labels")).get(keys.LABEL_SERVICE)),
    )
    application = _application(status, service)
    conditions = mappings(status.get("conditions"))
    ready: Object = next((condition for condition in conditions if condition.get("type") == "Ready"), {})
    is_serving = ready.get("status") == "True" or status.get("serviceStatus") == "Running"
    is_ready = is_serving and application.get("status") == "RUNNING"
    ends_at, facts = moment(metadata.get("deletionTimestamp")), [pod_facts(pod) for pod in pods]
    return PodFacts(
        name=name,
        uid=text_value(metadata.get("uid")),
        group="",
        attempt=0,
        service=service,
        start=parse_ray_service_name(name) or 0,
        kind="RayService",
        is_ready=is_ready,
        ends_at=None if ends_at is None else ends_at + GRACE_SECONDS,
        grace_seconds=None if ends_at is None else 0,
        finalizers=finalizers_of(metadata),
        ended=_ended(application, ready),
        stuck=next((fact.stuck for fact in facts if fact.stuck is not None), None),
        unschedulable=next((fact.unschedulable for fact in facts if fact.unschedulable), ""),
        says="" if is_ready else _said(application),
    )


def _application(status: Object, service: str) -> Object:
    """What Ray Serve says of it, in the Ray that answers or in the one that is to."""
    for item in ("activeServiceStatus", "pendingServiceStatus"):
        result = mapping(mapping(mapping(status.get(item)).get("applicationStatuses")).get(service))
        if result:
            return result
    return {}


def _ended(application: Object, ready: Object) -> Termination | None:
    """What no waiting helps; Ray Serve itself starts copies again."""
    if application.get("status") == "DEPLOY_FAILED":
        return Termination("", int(ExitCode.INVALID_JOB), "DEPLOY_FAILED", _said(application))
    if ready.get("reason") == INVALID:
        return Termination("", int(ExitCode.INVALID_JOB), INVALID, text_value(ready.get("message"), MAX_MESSAGE_LENGTH))
    return None


def _said(application: Object, num_lines: int = 5) -> str:
    """The last lines of what its deployments say, where a traceback has its error, or else of what it says itself."""
    deployments = [mapping(item) for item in mapping(application.get("serveDeploymentStatuses")).values()]
    messages = [_end_of(deployment.get("message")) for deployment in deployments]
    said = "\n".join(message for message in messages if message) or _end_of(application.get("message"))
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    status = text_value(application.get("status"))
    return f"{status}: {' | '.join(lines[-num_lines:])}" if lines else status


def _end_of(message: Any) -> str:
    return text_value(message[-MAX_MESSAGE_LENGTH:], MAX_MESSAGE_LENGTH) if isinstance(message, str) else ""
