"""The job has ended: what is said, and what is cleaned up."""

from __future__ import annotations

from typing import Any

from rljob_api.v1alpha1.status import RLJobStatus
from rljob_operator.states import ending
from rljob_operator.states.situation.conditions import Reason, no, yes
from rljob_operator.states.situation.facts import PodFacts, Termination
from rljob_operator.states.situation.situation import END_GRACE_SECONDS, Decision, QueueAction, Situation, earliest
from rljob_operator.vocabulary.timestamps import seconds_of, seconds_since


def succeed(situation: Situation) -> Decision:
    """The job is done."""
    decision = finished(_ended(situation, phase="Succeeded"))
    complete = yes(Reason.ALL_PODS_DONE, _after(situation))
    return decision.claiming("Complete", complete).claiming("Failed", no(Reason.ENDED_OTHERWISE))


def fail_job(situation: Situation, reason: Reason, message: str) -> Decision:
    """The job ends here, without having done its work."""
    decision = finished(_ended(situation, phase="Failed"))
    return decision.claiming("Failed", yes(reason, message)).claiming("Complete", no(Reason.ENDED_OTHERWISE))


def finished(situation: Situation) -> Decision:
    """Give quota and pods back, as often as it takes; delete the job when its time has come."""
    unwanted = _unwanted(situation)
    deletions = ending.deletions(situation, unwanted, END_GRACE_SECONDS)
    decision = Decision(situation.status, deletions=deletions, queue=QueueAction.FINISH)
    decision = ending.with_stuck_pods(situation, unwanted, decision)
    if situation.spec.lifecycle.clean_pod_policy != "None":
        rests = [pod.ended for pod in situation.pods if pod.ended is not None and not pod.is_over]
        lefts = (_linger_seconds(situation, rest) for rest in rests)
        decision = decision.again_within(earliest(left for left in lefts if left > 0))
    return _expiring(situation, decision)


def settled_seconds(status: RLJobStatus, now: float) -> int:
    """Seconds with all pods ready, over all attempts, as if the current stretch ended now."""
    return status.active_seconds + int(seconds_since(status.ready_time, now))


def _ended(situation: Situation, **changes: Any) -> Situation:
    return situation.with_status(
        completion_time=situation.timestamp,
        active_seconds=settled_seconds(situation.status, situation.now),
        ready_time=None,
        pending_time=None,
        next_attempt_time=None,
        **changes,
    )


def _unwanted(situation: Situation) -> tuple[PodFacts, ...]:
    policy = situation.spec.lifecycle.clean_pod_policy
    if policy == "None":
        return ()
    return tuple(pod for pod in situation.pods if policy == "All" or not (pod.is_over or _leaves(situation, pod)))


def _leaves(situation: Situation, pod: PodFacts) -> bool:
    """A pod whose worker has ended is on its way out with its logs; its data buffer follows, and whatever else does not
    would keep its accelerators."""
    return pod.ended is not None and _linger_seconds(situation, pod.ended) > 0


def _linger_seconds(situation: Situation, ended: Termination) -> float:
    """How long the rest of a pod may still take."""
    since = ended.at if ended.at is not None else seconds_of(situation.status.completion_time or situation.timestamp)
    return since + situation.spec.lifecycle.termination_grace_seconds - situation.now


def _expiring(situation: Situation, decision: Decision) -> Decision:
    ttl, completed = situation.spec.lifecycle.ttl_seconds_after_finished, situation.status.completion_time
    if ttl is None or completed is None:
        return decision
    left = seconds_of(completed) + ttl - situation.now
    if left > 0:
        return decision.again_within(left)
    return Decision(decision.status, decision.claims, queue=QueueAction.FINISH, deletes_job=True)


def _after(situation: Situation) -> str:
    progress = situation.status.progress
    return f"after step {progress.step}" if progress else ""
