"""The pods of an attempt go; what comes next waits until the last is gone."""

from __future__ import annotations

from rljob_operator.states.conditions import Reason, yes
from rljob_operator.states.facts import PodFacts
from rljob_operator.states.situation import END_GRACE_SECONDS, Decision, Deletion, QueueAction, Situation, earliest

LATE_SECONDS = 10.0
"""How long after its grace a pod may be there before that is worth telling."""


def end(situation: Situation) -> Decision:
    """Delete what is left, the finished ones too: their names are free then, and their nodes.

    Nothing to do once nothing is left: then the next attempt is waited for.
    """
    is_orderly = situation.status.phase == "Suspending"
    grace_seconds = situation.spec.lifecycle.termination_grace_seconds if is_orderly else END_GRACE_SECONDS
    decision = Decision(
        situation.status,
        deletions=deletions(situation, situation.pods, grace_seconds),
        queue=QueueAction.NONE if is_orderly else QueueAction.HOLD,
    )
    return with_stuck_pods(situation, decision)


def leftovers(situation: Situation) -> bool:
    """Whether a pod is there that may still run."""
    return any(not pod.is_over for pod in situation.pods)


def deletions(situation: Situation, pods: tuple[PodFacts, ...], grace_seconds: int) -> tuple[Deletion, ...]:
    """What to delete of `pods`: those that nobody deletes yet, or with more grace, or that do not go."""
    chosen = ((pod, _grace(situation, pod, grace_seconds)) for pod in pods)
    return tuple(Deletion(pod.name, pod.uid, grace) for pod, grace in chosen if grace is not None)


def with_stuck_pods(situation: Situation, decision: Decision) -> Decision:
    """`decision`, looking again when the next pod is to be deleted by force, and saying which do not go."""
    ends = [pod.ends_at for pod in situation.pods if pod.ends_at is not None]
    force_after = situation.spec.lifecycle.force_delete_seconds
    first = earliest(at + force_after for at in ends)
    # Answers of deletions change when pods end, so a pod just deleted is looked at again with its own event.
    decision = decision.again_within(None if first is None else first - situation.now)
    late = situation.now - min(LATE_SECONDS, force_after / 2)
    overdue = sorted(pod.name for pod in situation.pods if pod.ends_at is not None and pod.ends_at < late)
    if not overdue:
        return decision
    message = f"{', '.join(overdue[:5])} should be gone; deleted by force after {force_after} s"
    return decision.claiming("Degraded", yes(Reason.POD_STUCK_TERMINATING, message))


def _grace(situation: Situation, pod: PodFacts, grace_seconds: int) -> int | None:
    """Seconds of grace for a deletion; None where none is due.

    Whole seconds are the API's unit, so a grace that ends within a second of ours is ours.
    """
    if pod.ends_at is None:
        return grace_seconds
    if situation.now >= pod.ends_at + situation.spec.lifecycle.force_delete_seconds:
        return 0
    return grace_seconds if pod.ends_at > situation.now + grace_seconds + 1 else None
