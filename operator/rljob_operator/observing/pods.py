"""From pods as the API server shows them to what a decision needs to know of them.  Pure, and nothing raises."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rljob_api.lifetime.failure_policy import describe_exit_code
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_operator.names import parse_guest_pod_name, parse_pod_name, parse_service_pod_name
from rljob_operator.observing.values import (
    MAX_INT32,
    MAX_MESSAGE_LENGTH,
    Unreadable,
    mapping,
    mappings,
    moment,
    parse_json,
    text_value,
    whole_number,
)
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.facts import PodFacts, Stuck, Termination

Object = Mapping[str, Any]

_MAX_FINALIZERS = 32

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
    metadata, status = mapping(pod.get("metadata")), mapping(pod.get("status"))
    conditions = {text_value(item.get("type")): item for item in mappings(status.get("conditions"))}
    is_ready, ready_containers = _holds(conditions, "Ready"), _holds(conditions, "ContainersReady")
    buffer = _named(status.get("initContainerStatuses"), keys.CONTAINER_BUFFER)
    return replace(
        facts_of_metadata(pod),
        group=text_value(mapping(metadata.get("labels")).get(keys.LABEL_GROUP)),
        plan_hash=text_value(mapping(metadata.get("annotations")).get(keys.ANNOTATION_PLAN_HASH)),
        node=text_value(mapping(pod.get("spec")).get("nodeName")),
        address=_address(status.get("podIP")),
        is_ready=is_ready,
        is_cut_off=ready_containers and not is_ready,
        ended=_ended(status),
        num_buffer_restarts=whole_number(buffer.get("restartCount"), most=MAX_INT32) or 0,
        buffer_ended=terminated(buffer, "lastState"),
        stuck=_stuck(status),
        unschedulable=_unschedulable(conditions.get("PodScheduled")),
        disruption=_disruption(status, conditions.get("DisruptionTarget")),
    )


def facts_of_metadata(pod: Object) -> PodFacts:
    """What no container of the pod has a say in: which pod it is, and whether it goes or is over."""
    metadata = mapping(pod.get("metadata"))
    name = text_value(metadata.get("name"))
    known, served, guest = parse_pod_name(name), parse_service_pod_name(name), parse_guest_pod_name(name)
    ends_at = moment(metadata.get("deletionTimestamp"))
    return PodFacts(
        name=name,
        uid=text_value(metadata.get("uid")),
        group="",
        attempt=known.attempt if known is not None else guest.attempt if guest is not None else 0,
        service=served.service if served is not None else "",
        guest=None if guest is None else guest.number,
        start=served.start if served is not None else guest.start if guest is not None else 0,
        is_over=mapping(pod.get("status")).get("phase") in ("Succeeded", "Failed"),
        ends_at=ends_at,
        grace_seconds=None if ends_at is None else whole_number(metadata.get("deletionGracePeriodSeconds")) or 0,
        deletion_grace_seconds=_said_seconds(mapping(metadata.get("annotations")).get(keys.ANNOTATION_DELETION_GRACE)),
        finalizers=finalizers_of(metadata),
    )


def _said_seconds(said: Any) -> int | None:
    """As many as an annotation says; at least one, for none would be a deletion by force."""
    match = re.fullmatch("[0-9]{1,9}", text_value(said))
    return None if match is None else max(1, int(match[0]))


def finalizers_of(metadata: Object) -> tuple[str, ...]:
    """Names of those who must let go before the object is gone."""
    result = metadata.get("finalizers")
    return tuple(map(text_value, result[:_MAX_FINALIZERS])) if isinstance(result, list) else ()


def _address(said: Any) -> str:
    try:
        return str(ipaddress.ip_address(text_value(said)))
    except ValueError:
        return ""


def _ended(status: Object) -> Termination | None:
    worker = _named(status.get("containerStatuses"), keys.CONTAINER_WORKER)
    if (ended := terminated(worker, "state")) is not None:
        return ended
    if status.get("phase") == "Failed":
        reason, message = text_value(status.get("reason")), text_value(status.get("message"), MAX_MESSAGE_LENGTH)
        return _first_failure(status) or Termination("", int(ExitCode.RETRY), reason or "Failed", message)
    return Termination(keys.CONTAINER_WORKER, 0, "Completed", "") if status.get("phase") == "Succeeded" else None


def _first_failure(status: Object) -> Termination | None:
    ends = (terminated(container, "state") for container in containers(status))
    return next((end for end in ends if end is not None and end.exit_code != 0), None)


def terminated(container: Object, state: str) -> Termination | None:
    """How a container ended, as its `state` or `lastState` says."""
    result = mapping(mapping(container.get(state)).get("terminated"))
    if not result:
        return None
    code, message = whole_number(result.get("exitCode"), -MAX_INT32, MAX_INT32) or 0, result.get("message")
    said = termination_message_of(message if isinstance(message, str) else "")
    return Termination(
        container=text_value(container.get("name")),
        exit_code=code,
        reason=text_value(result.get("reason")),
        message=said.cause or (describe_exit_code(code) if code else ""),
        step=said.step,
        checkpoint=said.checkpoint,
        at=moment(result.get("finishedAt")),
    )


def _stuck(status: Object) -> Stuck | None:
    for container in containers(status):
        waiting = mapping(mapping(container.get("state")).get("waiting"))
        word = text_value(waiting.get("reason"))
        if (reason := STUCK.get(word)) is not None:
            image, message = text_value(container.get("image")), text_value(waiting.get("message"), MAX_MESSAGE_LENGTH)
            return Stuck(text_value(container.get("name")), reason, f"{word}, image {image}: {message}")
    return None


def _disruption(status: Object, condition: Object | None) -> str:
    if condition is not None and condition.get("status") == "True":
        return text_value(condition.get("reason")) or "DisruptionTarget"
    reason = text_value(status.get("reason"))
    return reason if status.get("phase") == "Failed" and reason in REFUSED_BY_KUBELET else ""


def _unschedulable(condition: Object | None) -> str:
    if condition is None or condition.get("status") == "True":
        return ""
    return text_value(condition.get("message"), MAX_MESSAGE_LENGTH) or text_value(condition.get("reason"))


def _holds(conditions: Mapping[str, Object], name: str) -> bool:
    return conditions.get(name, {}).get("status") == "True"


def containers(status: Object) -> list[Object]:
    """What a pod's status says of each, those of its beginning first."""
    return [*mappings(status.get("initContainerStatuses")), *mappings(status.get("containerStatuses"))]


def _named(containers: Any, name: str) -> Object:
    return next((item for item in mappings(containers) if item.get("name") == name), {})


@dataclass(frozen=True)
class TerminationMessage:
    """Why a worker ended, and how far it was, where it says so."""

    cause: str = ""
    step: int | None = None
    checkpoint: int | None = None


def termination_message_of(message: str) -> TerminationMessage:
    """The launcher's JSON; any other text is the cause."""
    try:
        result = parse_json(message)
    except Unreadable:
        result = None
    if not isinstance(result, dict):
        return TerminationMessage(text_value(message.strip(), MAX_MESSAGE_LENGTH))
    worker = text_value(result.get("worker"))
    cause = text_value(result.get("cause"), MAX_MESSAGE_LENGTH - len(worker) - 2)
    return TerminationMessage(
        f"{worker}: {cause}" if cause and worker else cause,
        whole_number(result.get("step")),
        whole_number(result.get("checkpoint")),
    )
