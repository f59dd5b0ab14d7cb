"""Pods of other attempts than the one that is meant to be: of a leader that was paused, of a slow webhook."""

from __future__ import annotations

from dataclasses import replace

from rljob_operator.states import ending
from rljob_operator.states.situation.conditions import Reason, no
from rljob_operator.states.situation.situation import END_GRACE_SECONDS, Decision, Situation


def without_strays(situation: Situation, decision: Decision) -> Decision:
    """`decision`, deleting them in whatever phase they turn up.

    They bear the host names of those that are meant to be, so none is made beside one that may still run.
    """
    strays = tuple(pod for pod in situation.pods if pod.attempt != decision.status.attempt)
    known = {deletion.uid for deletion in decision.deletions}
    news = (
        deletion for deletion in ending.deletions(situation, strays, END_GRACE_SECONDS) if deletion.uid not in known
    )
    decision = replace(decision, deletions=(*decision.deletions, *news))
    alive = [pod.name for pod in strays if not pod.is_over]
    if not (decision.creates_pods and alive):
        return decision
    message = f"{', '.join(sorted(alive)[:5])} of another attempt must be gone first"
    waiting = replace(decision, creates_pods=False).claiming("Scheduled", no(Reason.PODS_ENDING, message))
    return ending.with_stuck_pods(situation, strays, waiting)
