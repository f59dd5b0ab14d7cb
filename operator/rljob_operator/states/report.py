"""What is said of a job: conditions, pods by group, ready pods of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rljob_api.v1alpha1.status import ConditionType, Phase, RLJobStatus, WorkerGroupStatus
from rljob_operator.states.failures.faults import is_going
from rljob_operator.states.situation.conditions import (
    Claim,
    Claims,
    Reason,
    condition,
    merged_conditions,
    no,
    unknown,
    yes,
)
from rljob_operator.states.situation.facts import AdmissionState, PodFacts, ProgressAnswer, UnreachableLead
from rljob_operator.states.situation.situation import Decision, Obstacle, Situation

_NAMES_SHOWN = 5


def reported(situation: Situation, decision: Decision) -> Decision:
    """`decision` with a status that says all there is to say."""
    after = replace(situation, status=decision.status)
    claims = {**_USUAL[after.status.phase](after), **decision.claims}
    if situation.obstacle is not None and claims.get("Degraded") == _WELL:
        claims["Degraded"] = _obstacle(situation.obstacle)
    if situation.spec_changes and claims.get("Degraded", _WELL) == _WELL:
        claims["Degraded"] = yes(Reason.SPEC_CHANGED, situation.spec_changes)
    status = after.with_status(
        observed_generation=situation.generation,
        conditions=merged_conditions(after.status.conditions, claims, situation.now, situation.generation),
        worker_groups=_groups(after),
        ready=f"{sum(pod.is_ready for pod in after.current)}/{len(after.expected)}",
    ).status
    return replace(decision, status=status, claims=claims)


def obstructed(status: RLJobStatus, obstacle: Obstacle, now: float) -> RLJobStatus:
    """`status`, saying what kept a look from any decision."""
    claims: Claims = {"Degraded": _obstacle(obstacle)}
    conditions = merged_conditions(status.conditions, claims, now, status.observed_generation)
    return status.model_copy(update={"conditions": conditions})


def _obstacle(obstacle: Obstacle) -> Claim:
    return yes(obstacle.reason, obstacle.message)


def _groups(situation: Situation) -> tuple[WorkerGroupStatus, ...]:
    gang = situation.current
    guests = tuple(pod for pod in situation.guest_pods if pod.attempt == situation.status.attempt)
    return tuple(
        _group(group.name, group.replicas, gang)
        if group.elastic is None
        else _group(group.name, situation.status.generators_wanted, guests)
        for group in situation.spec.worker_groups
    )


def _group(name: str, desired: int, there: Sequence[PodFacts]) -> WorkerGroupStatus:
    pods = [pod for pod in there if pod.group == name]
    return WorkerGroupStatus(
        name=name,
        desired=desired,
        scheduled=sum(bool(pod.node) for pod in pods),
        ready=sum(pod.is_ready for pod in pods),
        failed=sum(pod.ended is not None and not pod.is_done for pod in pods),
        buffer_restarts=sum(pod.num_buffer_restarts for pod in pods),
    )


_WELL = no(Reason.AS_EXPECTED)


def _waiting(situation: Situation) -> Claims:
    """Between attempts it stays known why the last one did not get its pods."""
    claims: dict[ConditionType, Claim] = {
        "Accepted": yes(Reason.VALID),
        "Suspended": no(Reason.NOT_SUSPENDED),
        "QuotaReserved": _quota(situation),
        "Scheduled": no(Reason.NOT_STARTED),
        "Ready": no(Reason.NO_PODS),
        "Progressing": no(Reason.NOT_RUNNING),
        "Complete": no(Reason.NOT_FINISHED),
        "Failed": no(Reason.NOT_FINISHED),
    }
    if situation.status.next_attempt_time is not None and condition(situation.status.conditions, "Scheduled"):
        del claims["Scheduled"]
    if situation.status.next_attempt_time is None or condition(situation.status.conditions, "Degraded") is None:
        claims["Degraded"] = _WELL
    return claims


def _ending(situation: Situation) -> Claims:
    claims = dict(_waiting(situation))
    claims.pop("Degraded", None)  # why they go was said when it was decided
    if "Scheduled" in claims:
        claims["Scheduled"] = _ending_pods(situation)
    return claims


def _ending_pods(situation: Situation) -> Claim:
    if situation.obstacle is not None:  # they may not even be deleted
        return no(situation.obstacle.reason, situation.obstacle.message)
    return no(Reason.PODS_ENDING, f"{len(situation.pods)} pods of attempt {situation.status.attempt}")


def _suspending(situation: Situation) -> Claims:
    message = f"{len(situation.pods)} pods have {situation.spec.lifecycle.termination_grace_seconds} s for a checkpoint"
    suspended = no(Reason.SUSPENDING, message)
    if situation.is_outgrown and not situation.spec.suspend:
        steps = f"stop.steps was {situation.planned_steps} and is {situation.spec.stop.steps}"
        suspended = no(Reason.STEPS_RAISED, f"{steps}; {message}")
    return {**_ending(situation), "Suspended": suspended, "Degraded": _WELL}


def _suspended(situation: Situation) -> Claims:
    return {
        **_waiting(situation),
        "Suspended": yes(Reason.SUSPENDED, "spec.suspend is true; set it to false to go on from the last checkpoint"),
        "Degraded": _WELL,
    }


def _living(situation: Situation) -> Claims:
    return {
        "Accepted": yes(Reason.VALID),
        "Suspended": no(Reason.NOT_SUSPENDED),
        "QuotaReserved": _quota(situation),
        "Scheduled": _scheduled(situation),
        "Ready": _ready(situation),
        "Progressing": _progressing(situation),
        **_health(situation),
        "Degraded": _degraded(situation),
        "Complete": no(Reason.NOT_FINISHED),
        "Failed": no(Reason.NOT_FINISHED),
    }


def _ended(situation: Situation) -> Claims:
    """What is final stays; only what pods are left is news."""
    return {
        "Suspended": no(Reason.NOT_SUSPENDED),
        "Ready": no(Reason.NO_PODS if not situation.pods else Reason.PODS_NOT_READY),
        "Progressing": no(Reason.NOT_RUNNING),
        "Degraded": _WELL,
    }


_USUAL: Mapping[Phase, Callable[[Situation], Claims]] = {
    "Pending": _waiting,
    "Starting": _living,
    "Running": _living,
    "Restarting": _ending,
    "Suspending": _suspending,
    "Suspended": _suspended,
    "Succeeded": _ended,
    "Failed": _ended,
}


def _health(situation: Situation) -> Claims:
    """What the lead says of its metrics; nothing until it has said so."""
    answer = situation.progress
    if not isinstance(answer, ProgressAnswer) or answer.warnings is None or answer.attempt != situation.status.attempt:
        return {}
    if not answer.warnings:
        return {"Healthy": yes(Reason.NO_WARNING)}
    return {"Healthy": no(Reason.NOT_LEARNING, "; ".join(answer.warnings))}


def _quota(situation: Situation) -> Claim:
    if not situation.has_queue:
        return yes(Reason.NO_QUEUE)
    admission = situation.admission
    if admission.state is AdmissionState.ADMITTED or situation.status.phase == "Suspended":
        return yes(Reason.QUOTA_RESERVED)
    return no(Reason.EVICTED if admission.state is AdmissionState.EVICTED else Reason.QUOTA_PENDING, admission.message)


def _scheduled(situation: Situation) -> Claim:
    if situation.status.pods_created_time is None:
        return no(Reason.CREATING_PODS, f"{len(situation.expected)} pods of attempt {situation.status.attempt}")
    unplaced = [pod for pod in situation.current if not pod.node]
    if not unplaced:
        return yes(Reason.ALL_PODS_PLACED)
    why = next((f": {pod.unschedulable}" for pod in unplaced if pod.unschedulable), "")
    message = f"{len(unplaced)} of {len(situation.expected)} pods have no node{why}"
    return no(Reason.WAITING_FOR_NODES, message)


def _ready(situation: Situation) -> Claim:
    unready = [pod.name for pod in situation.current if not (pod.is_ready or pod.is_done)]
    if not unready and not situation.missing:
        return yes(Reason.ALL_PODS_READY)
    reason = Reason.PODS_STARTING if situation.status.ready_time is None else Reason.PODS_NOT_READY
    return no(reason, f"not ready: {_shown(unready) or 'pods that are not made yet'}")


def _progressing(situation: Situation) -> Claim:
    progress, step_of = situation.status.progress, condition(situation.status.conditions, "Progressing")
    if situation.status.phase != "Running":
        return no(Reason.NOT_RUNNING)
    if isinstance(situation.progress, UnreachableLead):
        return unknown(Reason.PROGRESS_UNREACHABLE, situation.progress.reason)
    # Nobody was asked just now, so what the last answer, or its absence, said still holds.
    if situation.progress is None and step_of is not None and step_of.reason == Reason.PROGRESS_UNREACHABLE:
        return unknown(Reason.PROGRESS_UNREACHABLE, step_of.message)
    return yes(Reason.STEP_ADVANCING) if progress and progress.step else unknown(Reason.NO_STEP_YET)


def _degraded(situation: Situation) -> Claim:
    if situation.obstacle is not None:
        return _obstacle(situation.obstacle)
    for pod in situation.current:
        if pod.stuck is not None:
            return yes(pod.stuck.reason, f"pod {pod.name}, container {pod.stuck.container}: {pod.stuck.message}")
    going = [pod.name for pod in situation.current if is_going(situation, pod)]
    return yes(Reason.POD_TERMINATING, _shown(going)) if going else _WELL


def _shown(pods: list[str]) -> str:
    more = f" and {len(pods) - _NAMES_SHOWN} more" if len(pods) > _NAMES_SHOWN else ""
    return ", ".join(sorted(pods)[:_NAMES_SHOWN]) + more
