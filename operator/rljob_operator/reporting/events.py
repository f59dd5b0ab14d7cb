"""Events of a job: what `kubectl describe` shows, as a function of what changed in its status.  Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rljob_api.v1alpha1.status import ENDED_PHASES, ConditionType, Phase, RLJobStatus
from rljob_api.vocabulary import keys
from rljob_operator.states import Decision
from rljob_operator.states.situation.conditions import Reason, ReasonText, condition, is_true
from rljob_operator.vocabulary.key import EventSubject
from rljob_operator.vocabulary.timestamps import micro_timestamp, timestamp

MAX_NOTE_BYTES = 1024
"""The API server takes no more."""


class EventReason(ReasonText):
    """What happened.  Besides these, every reason that makes Accepted, Scheduled, ServicesReady, Progressing or
    Degraded bad is an event of its own name."""

    ATTEMPT_STARTED = "AttemptStarted", "An attempt begins: its pods are being made."
    SERVICES_READY = "ServicesReady", "Every model beside the job answers."
    GENERATORS_READY = "GeneratorsReady", "Every pod of the elastic group is ready."
    GENERATORS_SCALED = "GeneratorsScaled", "Another number of pods of the elastic group is wanted."
    GENERATOR_LOST = (
        "GeneratorLost",
        "A pod of the elastic group ended or was taken away; another takes its place, and nothing restarts.",
    )
    RUNNING = "Running", "All pods of the attempt are ready."
    RESTARTING = "Restarting", "The attempt failed, or could not start; another follows."
    SUSPENDING = (
        "Suspending",
        "Pods write checkpoints and go: for spec.suspend, for a stop.steps that was raised, or because a queue wants "
        "quota back.",
    )
    SUSPENDED = "Suspended", "No pod is left; the job waits for spec.suspend to become false."
    RESUMED = "Resumed", "spec.suspend became false; the job goes on from its last checkpoint."
    SUCCEEDED = "Succeeded", "The job is done."
    FAILED = "Failed", "The job has failed; no attempt follows."
    CHILD_HEALED = "ChildHealed", "A child that was deleted or edited by hand is as it should be again."
    POD_FORCE_DELETED = (
        "PodForceDeleted",
        "A pod that did not go was deleted without waiting for its node.",
    )
    EXPIRED = "Expired", "lifecycle.ttlSecondsAfterFinished is over; the job is deleted."


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    reason: str
    note: str
    type: Literal["Normal", "Warning"] = "Normal"


def status_events(before: RLJobStatus, after: RLJobStatus) -> list[Event]:
    """What happened when the status went from `before` to `after`."""
    return [
        *_degradations(before, after),
        *_services(before, after),
        *_generators(before, after),
        *_phases(before, after),
    ]


def action_events(decision: Decision) -> list[Event]:
    """What is about to be done that no status shows."""
    forced = [deletion.name for deletion in decision.deletions if deletion.grace_seconds == 0]
    events = [Event(EventReason.POD_FORCE_DELETED, ", ".join(forced), "Warning")] if forced else []
    if decision.deletes_job:
        events.append(Event(EventReason.EXPIRED, "lifecycle.ttlSecondsAfterFinished is over"))
    return events


def manifest(event: Event, subject: EventSubject, now: float, instance: str) -> dict[str, Any]:
    """The event as an object.

    Its name follows from what is reported and from the version of the job it was seen on, so that an operator that
    dies after writing reports the same event again, and not another.  `kubectl describe` orders events by
    lastTimestamp, which only this API lets a client set, and those of one second by name.
    """
    identity = "\n".join((subject.uid, subject.resource_version, event.reason, event.note))
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{subject.name}.{int(subject.resource_version):016x}{digest[:16]}",
            "namespace": subject.namespace,
        },
        "eventTime": micro_timestamp(now),
        "firstTimestamp": timestamp(now),
        "lastTimestamp": timestamp(now),
        "count": 1,
        "source": {"component": keys.MANAGED_BY},
        "reportingComponent": keys.MANAGED_BY,
        "reportingInstance": instance[:128],
        "action": "Reconcile",
        "reason": event.reason,
        "message": _clipped(event.note),
        "type": event.type,
        "involvedObject": {
            "apiVersion": keys.API_VERSION,
            "kind": keys.KIND,
            "namespace": subject.namespace,
            "name": subject.name,
            "uid": subject.uid,
        },
    }


_TROUBLES: Mapping[ConditionType, str] = {
    "Accepted": "False",
    "QuotaReserved": "False",
    "Scheduled": "False",
    "ServicesReady": "False",
    "GeneratorsReady": "False",
    "AgentsReady": "False",
    "Progressing": "Unknown",
    "Healthy": "False",
    "Degraded": "True",
}
"""The status in which a condition is bad news."""

_EVERYDAY = frozenset(
    (Reason.NOT_STARTED, Reason.CREATING_PODS, Reason.WAITING_FOR_SERVICES, Reason.WAITING_FOR_NODES)
    + (Reason.PODS_ENDING, Reason.NO_STEP_YET, Reason.SERVICES_STARTING, Reason.SERVICES_STOPPED)
    + (Reason.GENERATORS_STARTING, Reason.GENERATORS_STOPPED, Reason.GENERATORS_LOST)
    + (Reason.AGENTS_STARTING, Reason.AGENTS_STOPPED)
)
"""Reasons of such a status that every job goes through."""


def _degradations(before: RLJobStatus, after: RLJobStatus) -> Iterator[Event]:
    reported: set[str] = set()
    for type_, bad in _TROUBLES.items():
        was, now = condition(before.conditions, type_), condition(after.conditions, type_)
        if now is None or now.status != bad or now.reason in _EVERYDAY or now.reason in reported:
            continue
        if was is None or (was.status, was.reason) != (now.status, now.reason):
            reported.add(now.reason)
            yield Event(now.reason, now.message or now.reason, "Warning")


def _services(before: RLJobStatus, after: RLJobStatus) -> Iterator[Event]:
    if is_true(after.conditions, "ServicesReady") and not is_true(before.conditions, "ServicesReady"):
        yield Event(EventReason.SERVICES_READY, ", ".join(service.name for service in after.services))


_MOST_LOST = 8
"""Events of pods that were lost at once, at most: with a pool of nodes hundreds may go."""


def _generators(before: RLJobStatus, after: RLJobStatus) -> Iterator[Event]:
    if before.generators_wanted and after.generators_wanted not in (0, before.generators_wanted):
        yield Event(EventReason.GENERATORS_SCALED, f"from {before.generators_wanted} to {after.generators_wanted}")
    known = {item.index: item.start for item in before.generator_pods} if after.attempt == before.attempt else {}
    lost = [item for item in after.generator_pods if item.message and item.start > known.get(item.index, 1)]
    for item in lost[:_MOST_LOST]:
        when = f" not before {item.next_start_time}" if item.next_start_time else ""
        note = f"generator {item.index}: {item.message}; start {item.start} follows{when}"
        yield Event(EventReason.GENERATOR_LOST, note, "Warning")
    if len(lost) > _MOST_LOST:
        yield Event(EventReason.GENERATOR_LOST, f"{len(lost) - _MOST_LOST} more generators were lost", "Warning")
    if is_true(after.conditions, "GeneratorsReady") and not is_true(before.conditions, "GeneratorsReady"):
        yield Event(EventReason.GENERATORS_READY, f"{after.generators} of {after.generators_wanted} are ready")


def _phases(before: RLJobStatus, after: RLJobStatus) -> Iterator[Event]:
    if before.phase == "Suspended" and after.phase not in ("Suspended", "Suspending", *ENDED_PHASES):
        yield Event(EventReason.RESUMED, "goes on from the last checkpoint")
    if after.restarts > before.restarts or (after.phase == "Restarting" and before.phase != "Restarting"):
        yield _restarting(before.attempt, after)
    if after.attempt > before.attempt:
        yield Event(
            EventReason.ATTEMPT_STARTED, f"attempt {after.attempt}: making {after.ready.partition('/')[2]} pods"
        )
    if after.phase != before.phase and after.phase in _OF_PHASE:
        yield _OF_PHASE[after.phase](after)


def _running(status: RLJobStatus) -> Event:
    return Event(EventReason.RUNNING, f"attempt {status.attempt}: {status.ready} pods are ready")


def _restarting(attempt: int, status: RLJobStatus) -> Event:
    after = f"; not before {status.next_attempt_time}" if status.next_attempt_time else ""
    note = (
        f"attempt {attempt} ended: {_why(status)}; restarts so far: {status.restarts}, "
        f"counted: {status.counted_restarts}{after}"
    )
    return Event(EventReason.RESTARTING, note, "Warning")


def _suspending(status: RLJobStatus) -> Event:
    return Event(EventReason.SUSPENDING, f"attempt {status.attempt}: pods write their checkpoints and go")


def _suspended(status: RLJobStatus) -> Event:
    return Event(EventReason.SUSPENDED, "no pod is left")


def _succeeded(status: RLJobStatus) -> Event:
    step = f" after step {status.progress.step}" if status.progress else ""
    return Event(EventReason.SUCCEEDED, f"done{step} in attempt {status.attempt}")


def _failed(status: RLJobStatus) -> Event:
    result = condition(status.conditions, "Failed")
    note = f"{result.reason}: {result.message}" if result else ""
    return Event(EventReason.FAILED, note, "Warning")


_OF_PHASE: Mapping[Phase, Callable[[RLJobStatus], Event]] = {
    "Running": _running,
    "Suspending": _suspending,
    "Suspended": _suspended,
    "Succeeded": _succeeded,
    "Failed": _failed,
}


def _why(status: RLJobStatus) -> str:
    result = condition(status.conditions, "Degraded")
    return f"{result.reason}, {result.message}" if result and result.status == "True" else "its pods go"


def _clipped(note: str) -> str:
    encoded = note.encode()
    return note if len(encoded) <= MAX_NOTE_BYTES else encoded[: MAX_NOTE_BYTES - 4].decode(errors="ignore") + " …"
