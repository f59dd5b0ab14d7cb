"""An attempt runs, or is about to."""

from __future__ import annotations

from rljob_operator.states import deadlines, ending, failing, finished, guests, services
from rljob_operator.states.situation.conditions import Reason, no, yes
from rljob_operator.states.situation.facts import AdmissionState
from rljob_operator.states.situation.situation import Decision, QueueAction, Situation

UNPLACEABLE_LOOK_SECONDS = 15.0
"""How often it is looked again where an admitted gang may run."""


def run_attempt(situation: Situation) -> Decision:
    """The first of these that has something to say decides; when none has, the attempt goes on."""
    rules = (
        _refuse,
        _go_further,
        _succeed,
        suspend_attempt,
        _give_quota_back,
        _obstruct,
        failing.fail_attempt,
        guests.stop_for_guest,
        _stop,
        guests.generators_deadline,
        deadlines.overrun,
    )
    decisions = (rule(situation) for rule in rules)
    return next((decision for decision in decisions if decision is not None), None) or _go_on(situation)


def _refuse(situation: Situation) -> Decision | None:
    """A job of which not even the pods are known any more."""
    refusal = situation.refusal
    if refusal is None or situation.expected:
        return None
    return finished.fail_job(situation, refusal.reason, refusal.message)


def _go_further(situation: Situation) -> Decision | None:
    """More steps were asked for: another attempt, also where the pods have just done the fewer."""
    return _checkpointing(situation) if situation.is_outgrown else None


def _succeed(situation: Situation) -> Decision | None:
    """Done, when every pod of the groups that count is: also where pods of others failed, as they do without peers."""
    groups = situation.spec.success_policy.groups or tuple(group.name for group in situation.spec.worker_groups)
    wanted = {name for name, group in situation.expected.items() if group in groups}
    done = {pod.name for pod in situation.current if pod.is_done}
    return finished.succeed(situation) if wanted <= done else None


def suspend_attempt(situation: Situation) -> Decision | None:
    """Somebody asks for it, and the pods get their grace."""
    return _checkpointing(situation) if situation.spec.suspend else None


def _give_quota_back(situation: Situation) -> Decision | None:
    """Also where the place in the queue was taken away with whatever stood for it: nobody runs without quota."""
    if situation.admission.state is AdmissionState.ADMITTED:
        return None
    message = situation.admission.message
    return _checkpointing(situation).claiming("QuotaReserved", no(Reason.EVICTED, message))


def _checkpointing(situation: Situation) -> Decision:
    """Nobody failed, so nothing is counted: the pods get all their grace."""
    return ending.end(
        situation.with_status(
            phase="Suspending",
            active_seconds=finished.settled_seconds(situation.status, situation.now),
            ready_time=None,
            pending_time=None,
            next_attempt_time=None,
            futile_attempts=0,
        )
    )


def _obstruct(situation: Situation) -> Decision | None:
    """A gang that cannot be made whole is given up; the children of one that is are only healed later."""
    obstacle = situation.obstacle
    if obstacle is None or not obstacle.is_refusal:
        return None
    claim = no(obstacle.reason, obstacle.message)
    if situation.status.pods_created_time is not None:
        return None
    return failing.restart(situation, yes(obstacle.reason, obstacle.message)).claiming("Scheduled", claim)


def _stop(situation: Situation) -> Decision | None:
    """Without a model that no other start would help, the gang would only use up its own."""
    service = services.failed_service(situation)
    if service is None:
        return None
    return finished.fail_job(situation, Reason.SERVICE_FAILED, f"service {service.name}: {service.message}")


def _go_on(situation: Situation) -> Decision:
    situation = _clocked(situation)
    status = situation.status
    if status.pods_created_time is None:
        if situation.missing and situation.admission.unplaceable:
            return _unplaceable(situation)
        if situation.missing:
            return Decision(status, keeps_children=True, creates_pods=True, queue=QueueAction.HOLD)
        situation = situation.with_status(pods_created_time=situation.timestamp)
    if situation.status.ready_time is None and _are_all_ready(situation):
        situation = situation.with_status(
            phase="Running", ready_time=situation.timestamp, pending_time=None, futile_attempts=0
        )
    elif situation.status.ready_time is not None:
        situation = situation.with_status(phase="Running")
    decision = Decision(situation.status, keeps_children=True, queue=QueueAction.HOLD)
    return decision.again_within(deadlines.next_deadline_seconds(situation))


def _unplaceable(situation: Situation) -> Decision:
    message = situation.admission.unplaceable
    decision = Decision(situation.status, queue=QueueAction.HOLD, look_again_seconds=UNPLACEABLE_LOOK_SECONDS)
    return decision.claiming("Scheduled", no(Reason.QUOTA_PENDING, message))


def _clocked(situation: Situation) -> Situation:
    """Where the scheduler waits for all, pods without a place are a queue: the clock of pendingSeconds stands."""
    if situation.status.ready_time is not None or not situation.waits_for_all:
        return situation
    if not any(pod.node for pod in situation.current):
        return situation.with_status(pending_time=None)
    return situation.with_status(pending_time=situation.status.pending_time or situation.timestamp)


def _are_all_ready(situation: Situation) -> bool:
    return all(pod.is_ready or pod.is_done for pod in situation.current)
