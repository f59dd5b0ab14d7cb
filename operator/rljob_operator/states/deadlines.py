"""Watchdog over an attempt: deadlines of its quota, images, pods and active seconds."""

from __future__ import annotations

from rljob_operator.states import failing, finished, services
from rljob_operator.states.finished import settled_seconds
from rljob_operator.states.situation.conditions import Reason, condition, no, yes
from rljob_operator.states.situation.facts import PodFacts, Stuck
from rljob_operator.states.situation.situation import Decision, Situation
from rljob_operator.vocabulary.timestamps import seconds_since

STUCK_SECONDS = 900
"""How long an image may not be there, or a container not be made, before the job fails."""


def overrun(situation: Situation) -> Decision | None:
    """The first deadline that has passed decides; None when none has."""
    decisions = (rule(situation) for rule in (active_deadline, _stuck, pending_deadline, _gang))
    return next((decision for decision in decisions if decision is not None), None)


def next_deadline_seconds(situation: Situation) -> float:
    """When the next of them may pass."""
    status, spec = situation.status, situation.spec
    lefts: list[float] = []
    if spec.lifecycle.active_seconds is not None and status.ready_time is not None:
        lefts.append(spec.lifecycle.active_seconds - settled_seconds(status, situation.now))
    if status.ready_time is None:
        lefts.append(spec.lifecycle.pending_seconds - seconds_since(status.pending_time, situation.now))
        lefts.append(spec.scheduling.timeout_seconds - seconds_since(status.pods_created_time, situation.now))
    if (stuck := _first_stuck(situation)) is not None:
        lefts.append(STUCK_SECONDS - _stuck_seconds(situation, stuck))
    # A deadline that has passed without consequence is not waited for.
    return min((left for left in lefts if left > 0), default=float("inf"))


def active_deadline(situation: Situation) -> Decision | None:
    """lifecycle.activeSeconds."""
    limit = situation.spec.lifecycle.active_seconds
    if limit is None or settled_seconds(situation.status, situation.now) < limit:
        return None
    message = f"the job ran for lifecycle.activeSeconds, {limit} s, over all attempts"
    return finished.fail_job(situation, Reason.ACTIVE_DEADLINE_EXCEEDED, message)


def _stuck(situation: Situation) -> Decision | None:
    if (first_stuck := _first_stuck(situation)) is None or (
        waited := _stuck_seconds(situation, first_stuck)
    ) < STUCK_SECONDS:
        return None
    pod, stuck = first_stuck
    message = f"pod {pod.name}, container {stuck.container}, cannot start since {int(waited)} s: {stuck.message}"
    return finished.fail_job(situation, stuck.reason, message)


def _first_stuck(situation: Situation) -> tuple[PodFacts, Stuck] | None:
    return next(((pod, pod.stuck) for pod in situation.current if pod.stuck is not None), None)


def _stuck_seconds(situation: Situation, result: tuple[PodFacts, Stuck]) -> float:
    """Seconds since it was reported: a pod may have waited for hours before its image was wanted."""
    degraded = condition(situation.status.conditions, "Degraded")
    if degraded is None or (degraded.status, degraded.reason) != ("True", result[1].reason):
        return 0.0
    degraded_seconds = seconds_since(degraded.last_transition_time, situation.now)
    return min(degraded_seconds, seconds_since(situation.status.pods_created_time, situation.now))


def pending_deadline(situation: Situation) -> Decision | None:
    """lifecycle.pendingSeconds."""
    status, limit = situation.status, situation.spec.lifecycle.pending_seconds
    if status.ready_time is not None or seconds_since(status.pending_time, situation.now) < limit:
        return None
    if not situation.current and (unhealthy := services.unhealthy_services(situation)):
        message = f"not all services were healthy within lifecycle.pendingSeconds, {limit} s: {', '.join(unhealthy)}"
        return finished.fail_job(situation, Reason.PENDING_TIMEOUT, message)
    unready = sorted(pod.name for pod in situation.current if not pod.is_ready)
    why = next((f": {pod.unschedulable}" for pod in situation.current if pod.unschedulable), "")
    message = f"not all pods were ready within lifecycle.pendingSeconds, {limit} s; {len(unready)} are not{why}"
    return finished.fail_job(situation, Reason.PENDING_TIMEOUT, message)


def _gang(situation: Situation) -> Decision | None:
    """Two half-placed gangs would hold each other up for ever; each gives its places back, and waits its own time."""
    placed = sum(bool(pod.node) for pod in situation.current)
    limit, total = situation.spec.scheduling.timeout_seconds, len(situation.expected)
    waited = seconds_since(situation.status.pods_created_time, situation.now)
    if situation.waits_for_all or waited < limit or not 0 < placed < total:
        return None
    message = f"only {placed} of {total} pods found a node within scheduling.timeoutSeconds, {limit} s"
    decision = failing.restart(situation, yes(Reason.GANG_TIMED_OUT, message))
    return decision.claiming("Scheduled", no(Reason.GANG_TIMED_OUT, message))
