"""From the Deployment of agents and its pods to what a decision needs to know of them.  Pure, and nothing raises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rljob_operator.observing.pods import Object, containers, pod_facts, terminated
from rljob_operator.observing.values import (
    MAX_INT32,
    MAX_MESSAGE_LENGTH,
    mapping,
    mappings,
    text_value,
    whole_number,
)
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.facts import AgentsFacts

CRASH_SECONDS = 600.0
"""A container that has run for so long has recovered: its kubelet forgets its pauses then, too."""
CRASHES = 2
"""A container that was started again so often has ended before it could do much: from here on kubelets pause."""
_WAITS_AFTER_CRASH = "CrashLoopBackOff"


def agents_facts(deployment: Object, pods: Sequence[Object], now: float) -> AgentsFacts:
    """The facts of a Deployment of ours and of its pods, among those that have its label."""
    spec, status = mapping(deployment.get("spec")), mapping(deployment.get("status"))
    replicas = whole_number(spec.get("replicas"), most=MAX_INT32)
    wanted = 1 if replicas is None else replicas
    ready = min(wanted, whole_number(status.get("readyReplicas"), most=MAX_INT32) or 0)
    name = text_value(mapping(deployment.get("metadata")).get("name"))
    staying = [pod for pod in pods if _is_made_for(name, pod) and _stays(pod)]
    reason, message = next(_problems(status, staying, now), (None, ""))
    return AgentsFacts(is_there=True, wanted=wanted, ready=ready, reason=reason, message=message)


def _is_made_for(deployment: str, pod: Object) -> bool:
    """Whether a pod is of the Deployment of this name, by what Kubernetes calls the ReplicaSet between them: others may
    have its label, too."""
    metadata = mapping(pod.get("metadata"))
    template = text_value(mapping(metadata.get("labels")).get("pod-template-hash"))
    owners = [owner for owner in mappings(metadata.get("ownerReferences")) if owner.get("controller") is True]
    made_by = [(owner.get("kind"), owner.get("name")) for owner in owners]
    return bool(template) and made_by == [("ReplicaSet", f"{deployment}-{template}")]


def _stays(pod: Object) -> bool:
    is_over = mapping(pod.get("status")).get("phase") in ("Succeeded", "Failed")
    return not is_over and "deletionTimestamp" not in mapping(pod.get("metadata"))


def _problems(status: Object, pods: Sequence[Object], now: float) -> Iterator[tuple[Reason, str]]:
    """The most telling first."""
    conditions = {text_value(item.get("type")): item for item in mappings(status.get("conditions"))}
    refused, progressing = conditions.get("ReplicaFailure", {}), conditions.get("Progressing", {})
    if refused.get("status") == "True":
        yield Reason.AGENTS_REFUSED, text_value(refused.get("message"), MAX_MESSAGE_LENGTH)
    facts = [pod_facts(pod) for pod in pods]
    for fact in facts:
        if fact.stuck is not None:
            yield Reason.AGENTS_FAILED, f"pod {fact.name}, container {fact.stuck.container}: {fact.stuck.message}"
    for fact, pod in zip(facts, pods, strict=True):
        for container in containers(mapping(pod.get("status"))):
            if crash := _crash(container, now):
                yield Reason.AGENTS_FAILED, f"pod {fact.name}, container {crash}"
    for fact in facts:
        if fact.unschedulable:
            yield Reason.AGENTS_STARTING, f"pod {fact.name} has no node: {fact.unschedulable}"
    if progressing.get("status") == "False":
        yield Reason.AGENTS_FAILED, text_value(progressing.get("message"), MAX_MESSAGE_LENGTH)


def _crash(container: Object, now: float) -> str:
    """How a container ends again and again, also while it runs in between; empty for one that does not."""
    end, restarts = terminated(container, "lastState"), whole_number(container.get("restartCount"), most=MAX_INT32)
    waiting = mapping(mapping(container.get("state")).get("waiting"))
    is_recent = end is not None and end.at is not None and now - end.at < CRASH_SECONDS
    is_crashing = (restarts or 0) >= CRASHES and is_recent
    if waiting.get("reason") != _WAITS_AFTER_CRASH and not is_crashing:
        return ""
    name = f"{text_value(container.get('name'))}, was started again {restarts or 0} times"
    if end is None:
        return f"{name}: {text_value(waiting.get('message'), MAX_MESSAGE_LENGTH)}"
    return f"{name}; it ended with exit code {end.exit_code} ({end.reason}): {end.message}".removesuffix(": ")
