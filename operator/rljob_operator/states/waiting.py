"""No attempt runs: what it takes until one begins."""

from __future__ import annotations

from rljob_operator.states import ending, finished
from rljob_operator.states.situation.conditions import Reason, no
from rljob_operator.states.situation.facts import AdmissionState
from rljob_operator.states.situation.situation import Decision, QueueAction, Situation
from rljob_operator.vocabulary.timestamps import seconds_of, seconds_since

REFUSED_LOOK_SECONDS = 15.0
"""How often a claim, a ConfigMap or a profile that was missing is looked for again."""
PREDECESSOR_LOOK_SECONDS = 1.0
SPENT_LOOK_SECONDS = 1.0
"""How soon after a place that is of no use any more was given up another is asked for."""


def pending(situation: Situation) -> Decision:
    """The first of these that has something to say decides; when none has, an attempt begins."""
    situation = _clocked(situation)
    rules = (_end_leftovers, _suspend, _refuse_for_ever, _expire, _refuse, _wait_for_predecessor, _queue, _pause)
    decisions = (rule(situation) for rule in rules)
    return next((decision for decision in decisions if decision is not None), None) or _begin(situation)


def suspended(situation: Situation) -> Decision:
    """Stay so, or become pending.  A suspended job holds no place in a queue."""
    if ending.leftovers(situation) or _holds_pods_beside(situation):
        return ending.end(situation.with_status(phase="Suspending"))
    if not situation.spec.suspend:
        return pending(situation.with_status(phase="Pending", pending_time=None))
    return Decision(situation.status, queue=QueueAction.LEAVE)


def _clocked(situation: Situation) -> Situation:
    if situation.status.pending_time is not None:
        return situation
    return situation.with_status(pending_time=situation.timestamp)


def _end_leftovers(situation: Situation) -> Decision | None:
    return ending.end(situation.with_status(phase="Restarting")) if ending.leftovers(situation) else None


def _suspend(situation: Situation) -> Decision | None:
    if not situation.spec.suspend:
        return None
    if _holds_pods_beside(situation):
        return ending.end(situation.with_status(phase="Suspending"))
    status = situation.with_status(phase="Suspended", pending_time=None, next_attempt_time=None).status
    return Decision(status, queue=QueueAction.LEAVE)


def _holds_pods_beside(situation: Situation) -> bool:
    """Whether a model beside the job, or a pod of its elastic group, may still run."""
    return any(not pod.is_over for pod in (*situation.service_pods, *situation.guest_pods))


def _refuse_for_ever(situation: Situation) -> Decision | None:
    refusal = situation.refusal
    if refusal is None or not refusal.is_final:
        return None
    return finished.fail_job(situation, refusal.reason, refusal.message).claiming(
        "Accepted", no(refusal.reason, refusal.message)
    )


def _expire(situation: Situation) -> Decision | None:
    limit = situation.spec.lifecycle.pending_seconds
    if seconds_since(situation.status.pending_time, situation.now) < limit:
        return None
    why = f": {situation.refusal.message}" if situation.refusal else ""
    message = f"the job could not start within lifecycle.pendingSeconds, {limit} s{why}"
    return finished.fail_job(situation, Reason.PENDING_TIMEOUT, message)


def _refuse(situation: Situation) -> Decision | None:
    refusal = situation.refusal
    if refusal is None:
        return None
    decision = Decision(situation.status, queue=QueueAction.LEAVE, look_again_seconds=REFUSED_LOOK_SECONDS)
    return decision.claiming("Accepted", no(refusal.reason, refusal.message))


def _wait_for_predecessor(situation: Situation) -> Decision | None:
    if not situation.is_predecessor_ending:
        return None
    message = "children of a deleted job of the same name are still there"
    return Decision(situation.status, look_again_seconds=PREDECESSOR_LOOK_SECONDS).claiming(
        "Scheduled", no(Reason.PREDECESSOR_ENDING, message)
    )


def _queue(situation: Situation) -> Decision | None:
    """The clock of pendingSeconds stands while the job queues: how long that takes is the queue's affair."""
    admission = situation.admission
    if admission.state is AdmissionState.ADMITTED and not admission.unplaceable:
        return None
    status = situation.with_status(pending_time=None).status
    is_evicted = admission.state is AdmissionState.EVICTED
    queue = QueueAction.RELEASE if is_evicted else QueueAction.HOLD
    again = REFUSED_LOOK_SECONDS if admission.unplaceable else None
    if admission.state is AdmissionState.SPENT:
        queue, again = QueueAction.LEAVE, SPENT_LOOK_SECONDS
    message = admission.unplaceable or admission.message
    said = no(Reason.EVICTED if is_evicted else Reason.QUOTA_PENDING, message)
    if situation.obstacle is not None:  # the queue could not even be asked
        said = no(situation.obstacle.reason, situation.obstacle.message)
    return Decision(status, queue=queue, look_again_seconds=again).claiming("QuotaReserved", said)


def _pause(situation: Situation) -> Decision | None:
    until = situation.status.next_attempt_time
    if until is None or seconds_of(until) <= situation.now:
        return None
    return Decision(situation.status, look_again_seconds=seconds_of(until) - situation.now)


def _begin(situation: Situation) -> Decision:
    """The number is written before any pod is made, so that no number is used twice."""
    status, plan = situation.status, situation.plan
    assert plan is not None, "a job without a plan is refused"
    begun = situation.with_status(
        phase="Starting",
        attempt=status.attempt + 1,
        plan_hash=plan.hash,
        plan_config_map=plan.config_map,
        start_time=status.start_time or situation.timestamp,
        pods_created_time=None,
        ready_time=None,
        next_attempt_time=None,
    ).status
    return Decision(begun, keeps_children=True, creates_pods=True, queue=QueueAction.HOLD)
