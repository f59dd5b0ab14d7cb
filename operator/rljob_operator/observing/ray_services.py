"""From a RayService as KubeRay writes it to what a decision needs to know of it.  Pure, and nothing raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rljob_api.vocabulary import keys
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_operator.manifests.serving.template import GRACE_SECONDS
from rljob_operator.names import parse_ray_service_name
from rljob_operator.observing.pods import finalizers_of, pod_facts
from rljob_operator.observing.values import MAX_MESSAGE_LENGTH, mapping, mappings, moment, words
from rljob_operator.states.situation.facts import Ended, PodFacts

Object = Mapping[str, Any]

INVALID = "ValidationFailed"
"""The reason of its condition Ready where KubeRay refuses what we wrote."""


def ray_service_facts(ray_service: Object, pods: Sequence[Object]) -> PodFacts:
    """The facts of one of ours; `pods` are those that KubeRay has made for the service, which have its label."""
    metadata, status = mapping(ray_service.get("metadata")), mapping(ray_service.get("status"))
    name, service = words(metadata.get("name")), words(mapping(metadata.get("labels")).get(keys.LABEL_SERVICE))
    application = _application(status, service)
    conditions = mappings(status.get("conditions"))
    ready: Object = next((each for each in conditions if each.get("type") == "Ready"), {})
    is_serving = ready.get("status") == "True" or status.get("serviceStatus") == "Running"
    is_ready = is_serving and application.get("status") == "RUNNING"
    ends_at, facts = moment(metadata.get("deletionTimestamp")), [pod_facts(each) for each in pods]
    return PodFacts(
        name=name,
        uid=words(metadata.get("uid")),
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
        stuck=next((each.stuck for each in facts if each.stuck is not None), None),
        unschedulable=next((each.unschedulable for each in facts if each.unschedulable), ""),
        says="" if is_ready else _said(application),
    )


def _application(status: Object, service: str) -> Object:
    """What Ray Serve says of it, in the Ray that answers or in the one that is to."""
    for each in ("activeServiceStatus", "pendingServiceStatus"):
        found = mapping(mapping(mapping(status.get(each)).get("applicationStatuses")).get(service))
        if found:
            return found
    return {}


def _ended(application: Object, ready: Object) -> Ended | None:
    """What no waiting helps; Ray Serve itself starts copies again."""
    if application.get("status") == "DEPLOY_FAILED":
        return Ended("", int(ExitCode.INVALID_JOB), "DEPLOY_FAILED", _said(application))
    if ready.get("reason") == INVALID:
        return Ended("", int(ExitCode.INVALID_JOB), INVALID, words(ready.get("message"), MAX_MESSAGE_LENGTH))
    return None


def _said(application: Object, num_lines: int = 5) -> str:
    """The last lines of what its deployments say, where a traceback has its error, or else of what it says itself."""
    deployments = [mapping(each) for each in mapping(application.get("serveDeploymentStatuses")).values()]
    messages = [_end_of(each.get("message")) for each in deployments]
    said = "\n".join(each for each in messages if each) or _end_of(application.get("message"))
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    status = words(application.get("status"))
    return f"{status}: {' | '.join(lines[-num_lines:])}" if lines else status


def _end_of(message: Any) -> str:
    return words(message[-MAX_MESSAGE_LENGTH:], MAX_MESSAGE_LENGTH) if isinstance(message, str) else ""
