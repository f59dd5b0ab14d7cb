"""From a RayService as KubeRay writes it to what a decision needs to know of it.  Pure, but for who reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rljob_api.vocabulary import keys
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_operator.cluster.kinds import Kind
from rljob_operator.manifests.serving.template import GRACE_SECONDS
from rljob_operator.names import parse_ray_service_name
from rljob_operator.states.situation.facts import Ended, PodFacts
from rljob_operator.surveying.observe import pod_facts
from rljob_operator.vocabulary.key import Key
from rljob_operator.vocabulary.timestamps import seconds_of

Object = Mapping[str, Any]

INVALID = "ValidationFailed"
"""The reason of its condition Ready where KubeRay refuses what we wrote."""


class RayServices(Protocol):
    """KubeRay's, as a watch tells of them."""

    @property
    def kind(self) -> Kind | None:
        """As the cluster has them; None where there is no KubeRay, or models are in pods of ours."""
        ...

    def of(self, key: Key) -> Sequence[dict[str, Any]] | None:
        """The job's; None while there is no watch, and the API server is asked."""
        ...


def ray_service_facts(ray_service: Object, pods: Sequence[Object]) -> PodFacts:
    """The facts of one of ours; `pods` are those that KubeRay has made for the service, which have its label."""
    metadata, status = ray_service["metadata"], ray_service.get("status") or {}
    service = metadata["labels"].get(keys.LABEL_SERVICE, "")
    application = _application(status, service)
    ready: Object = next((each for each in status.get("conditions") or () if each["type"] == "Ready"), {})
    is_serving = ready.get("status") == "True" or status.get("serviceStatus") == "Running"
    is_ready = is_serving and application.get("status") == "RUNNING"
    ends_at, facts = metadata.get("deletionTimestamp"), [pod_facts(each) for each in pods]
    return PodFacts(
        name=metadata["name"],
        uid=metadata["uid"],
        group="",
        attempt=0,
        service=service,
        start=parse_ray_service_name(metadata["name"]) or 0,
        kind="RayService",
        is_ready=is_ready,
        ends_at=seconds_of(ends_at) + GRACE_SECONDS if ends_at else None,
        grace_seconds=0 if ends_at else None,
        finalizers=tuple(metadata.get("finalizers") or ()),
        ended=_ended(application, ready),
        stuck=next((each.stuck for each in facts if each.stuck is not None), None),
        unschedulable=next((each.unschedulable for each in facts if each.unschedulable), ""),
        says="" if is_ready else _words(application),
    )


def _application(status: Object, service: str) -> Object:
    """What Ray Serve says of it, in the Ray that answers or in the one that is to."""
    for each in ("activeServiceStatus", "pendingServiceStatus"):
        found: Object = ((status.get(each) or {}).get("applicationStatuses") or {}).get(service) or {}
        if found:
            return found
    return {}


def _ended(application: Object, ready: Object) -> Ended | None:
    """What no waiting helps; Ray Serve itself starts copies again."""
    if application.get("status") == "DEPLOY_FAILED":
        return Ended("", int(ExitCode.INVALID_JOB), "DEPLOY_FAILED", _words(application))
    if ready.get("reason") == INVALID:
        return Ended("", int(ExitCode.INVALID_JOB), INVALID, str(ready.get("message") or ""))
    return None


def _words(application: Object, num_lines: int = 5) -> str:
    """The last lines of what its deployments say, where a traceback has its error, or else of what it says itself."""
    deployments = (application.get("serveDeploymentStatuses") or {}).values()
    said = "\n".join(each["message"] for each in deployments if each.get("message")) or application.get("message") or ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    status = application.get("status") or ""
    return f"{status}: {' | '.join(lines[-num_lines:])}" if lines else str(status)
