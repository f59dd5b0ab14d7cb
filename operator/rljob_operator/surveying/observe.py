"""From pods as the API server shows them to what a decision needs to know of them.  Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rljob_api.lifetime.failure_policy import describe
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_operator.names import parse_pod_name, parse_service_pod_name
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.facts import Ended, PodFacts, Stuck
from rljob_operator.vocabulary.timestamps import seconds_of

Object = Mapping[str, Any]

REFUSED_BY_KUBELET = frozenset(
    ("NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "NodeAffinity", "NodePorts")
    + ("OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfephemeral-storage")
    + ("UnexpectedAdmissionError", "TopologyAffinityError")
)
"""Reasons of a pod's failure that are the node's, not the pod's.  Evicted is not among them: an eviction that the node
caused sets DisruptionTarget, one that the pod's own use of its disk caused does not."""

STUCK = {
    "ErrImagePull": Reason.IMAGE_PULL_FAILED,
    "ImagePullBackOff": Reason.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": Reason.IMAGE_PULL_FAILED,
    "InvalidImageName": Reason.IMAGE_PULL_FAILED,
    "ImageInspectError": Reason.IMAGE_PULL_FAILED,
    "CreateContainerConfigError": Reason.CONTAINER_CONFIG_INVALID,
    "CreateContainerError": Reason.CONTAINER_CONFIG_INVALID,
    "RunContainerError": Reason.CONTAINER_CONFIG_INVALID,
}
"""What a container waits for that seldom comes by itself, and the condition's reason for it."""


def pod_facts(pod: Object) -> PodFacts:
    """The facts of one pod of ours."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels, known = metadata.get("labels") or {}, parse_pod_name(metadata["name"])
    served = parse_service_pod_name(metadata["name"])
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    ends_at = metadata.get("deletionTimestamp")
    buffer = _named(status.get("initContainerStatuses"), keys.CONTAINER_BUFFER)
    return PodFacts(
        name=metadata["name"],
        uid=metadata["uid"],
        group=labels.get(keys.LABEL_GROUP, ""),
        attempt=known.attempt if known is not None else 0,
        service=served.service if served is not None else "",
        start=served.start if served is not None else 0,
        plan_hash=(metadata.get("annotations") or {}).get(keys.ANNOTATION_PLAN_HASH, ""),
        node=(pod.get("spec") or {}).get("nodeName") or "",
        address=status.get("podIP") or "",
        is_ready=_holds(conditions, "Ready"),
        is_cut_off=_holds(conditions, "ContainersReady") and not _holds(conditions, "Ready"),
        is_over=status.get("phase") in ("Succeeded", "Failed"),
        ends_at=seconds_of(ends_at) if ends_at else None,
        grace_seconds=int(metadata.get("deletionGracePeriodSeconds") or 0) if ends_at else None,
        finalizers=tuple(metadata.get("finalizers") or ()),
        ended=_ended(status),
        num_buffer_restarts=buffer.get("restartCount", 0),
        buffer_ended=_terminated(buffer, "lastState"),
        stuck=_stuck(status),
        unschedulable=_unschedulable(conditions.get("PodScheduled")),
        disruption=_disruption(status, conditions.get("DisruptionTarget")),
    )


def _ended(status: Object) -> Ended | None:
    worker = _named(status.get("containerStatuses"), keys.CONTAINER_WORKER)
    if (ended := _terminated(worker, "state")) is not None:
        return ended
    if status.get("phase") == "Failed":
        return _first_failure(status) or Ended(
            "", int(ExitCode.RETRY), status.get("reason") or "Failed", status.get("message") or ""
        )
    return Ended(keys.CONTAINER_WORKER, 0, "Completed", "") if status.get("phase") == "Succeeded" else None


def _first_failure(status: Object) -> Ended | None:
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    ends = (_terminated(each, "state") for each in containers)
    return next((each for each in ends if each is not None and each.exit_code != 0), None)


def _terminated(container: Object, state: str) -> Ended | None:
    found = (container.get(state) or {}).get("terminated")
    if not found:
        return None
    code, words = int(found.get("exitCode", 0)), _last_words(found.get("message") or "")
    return Ended(
        container=container["name"],
        exit_code=code,
        reason=found.get("reason") or "",
        message=_cause(words) or (describe(code) if code else ""),
        step=_whole(words.get("step")),
        checkpoint=_whole(words.get("checkpoint")),
        at=seconds_of(found["finishedAt"]) if found.get("finishedAt") else None,
    )


def _last_words(message: str) -> Object:
    """What a launcher left as JSON; any other text is the cause."""
    try:
        found = json.loads(message)
    except ValueError:
        return {"cause": message.strip()}
    return found if isinstance(found, dict) else {"cause": message}


def _cause(words: Object) -> str:
    cause, worker = words.get("cause"), words.get("worker")
    return f"{worker}: {cause}" if cause and worker else str(cause or "")


def _stuck(status: Object) -> Stuck | None:
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (each.get("state") or {}).get("waiting") or {}
        if (reason := STUCK.get(waiting.get("reason", ""))) is not None:
            message = f"{waiting['reason']}, image {each.get('image', '')}: {waiting.get('message') or ''}"
            return Stuck(each["name"], reason, message)
    return None


def _disruption(status: Object, condition: Object | None) -> str:
    if condition is not None and condition.get("status") == "True":
        return str(condition.get("reason") or "DisruptionTarget")
    reason = str(status.get("reason") or "")
    return reason if status.get("phase") == "Failed" and reason in REFUSED_BY_KUBELET else ""


def _unschedulable(condition: Object | None) -> str:
    if condition is None or condition.get("status") == "True":
        return ""
    return str(condition.get("message") or condition.get("reason") or "")


def _holds(conditions: Mapping[str, Object], name: str) -> bool:
    return conditions.get(name, {}).get("status") == "True"


def _named(containers: Iterable[Object] | None, name: str) -> Object:
    return next((each for each in containers or () if each.get("name") == name), {})


def _whole(number: Any) -> int | None:
    """A step, as user code may have written it."""
    return number if isinstance(number, int) and not isinstance(number, bool) else None
