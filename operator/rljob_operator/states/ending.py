"""The pods of an attempt go; what comes next waits until the last is gone."""

from __future__ import annotations

from rljob_operator.states.situation.conditions import Reason, yes
from rljob_operator.states.situation.facts import PodFacts
from rljob_operator.states.situation.situation import (
    END_GRACE_SECONDS,
    Decision,
    Deletion,
    QueueAction,
    Situation,
    earliest,
)

LATE_SECONDS = 10.0
"""How long after its grace a pod may be there before that is worth reporting."""


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
    return with_stuck_pods(situation, situation.pods, decision)


def leftovers(situation: Situation) -> bool:
    """Whether a pod is there that may still run."""
    return any(not pod.is_over for pod in situation.pods)


def deletions(situation: Situation, pods: tuple[PodFacts, ...], grace_seconds: int) -> tuple[Deletion, ...]:
    """What to delete of `pods`: those that nobody deletes yet, or with more grace, or that do not go."""
    chosen = ((pod, _grace(situation, pod, grace_seconds)) for pod in pods)
    return tuple(Deletion(pod.name, pod.uid, grace, pod.kind) for pod, grace in chosen if grace is not None)


def with_stuck_pods(situation: Situation, pods: tuple[PodFacts, ...], decision: Decision) -> Decision:
    """`decision`, looking again when the next of `pods` is to be deleted by force, and saying which do not go."""
    force_after = situation.spec.lifecycle.force_delete_seconds
    # One that was deleted by force already goes when its finalizers do, which is an event and needs no look.
    first = earliest(pod.ends_at for pod in pods if pod.ends_at is not None and pod.grace_seconds)
    decision = decision.again_within(None if first is None else first + force_after - situation.now)
    late = situation.now - min(LATE_SECONDS, force_after / 2)
    overdue = [pod for pod in pods if pod.ends_at is not None and pod.ends_at < late]
    if not overdue:
        return decision
    return decision.claiming("Degraded", yes(Reason.POD_STUCK_TERMINATING, _words(overdue, force_after)))


def _words(overdue: list[PodFacts], force_after: int) -> str:
    names = ", ".join(sorted(pod.name for pod in overdue)[:5])
    held = sorted({finalizer for pod in overdue if not pod.grace_seconds for finalizer in pod.finalizers})
    if held:
        return f"{names} should be gone; whoever put finalizer {', '.join(held)} on must take it off"
    return f"{names} should be gone; deleted by force after {force_after} s"


def _grace(situation: Situation, pod: PodFacts, grace_seconds: int) -> int | None:
    """Seconds of grace for a deletion; None where one would change nothing: a grace only ever becomes shorter."""
    is_late = pod.ends_at is not None and situation.now >= pod.ends_at + situation.spec.lifecycle.force_delete_seconds
    wanted = 0 if is_late else grace_seconds
    return wanted if pod.grace_seconds is None or wanted < pod.grace_seconds else None
