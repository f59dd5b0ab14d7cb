"""What the spec and the clock alone demand of a job that cannot be looked at: an end, a suspension, a deadline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rljob_api.v1alpha1.status import Phase
from rljob_operator.states import deadlines, ending, finished, living, waiting
from rljob_operator.states.guests import with_guest_pods
from rljob_operator.states.report import obstructed, reported
from rljob_operator.states.services import with_service_pods
from rljob_operator.states.situation.situation import Decision, Refusal, Situation


def decide_by_spec(situation: Situation) -> Decision:
    """Decide where only the names and phases of pods and models are known; the `obstacle` says why.

    An attempt that runs goes on until a deadline or somebody ends it; no other begins.
    """
    obstacle = situation.obstacle
    assert obstacle is not None, "a job that can be looked at is decided about by what is seen"
    situation = replace(situation, refusal=Refusal(obstacle.reason, obstacle.message))
    decision = _PHASES[situation.status.phase](situation)
    if decision is None:
        return Decision(obstructed(situation.status, obstacle, situation.now))
    return reported(situation, with_guest_pods(situation, with_service_pods(situation, decision)))


def _live(situation: Situation) -> Decision | None:
    decisions = (
        rule(situation) for rule in (living.suspend_attempt, deadlines.active_deadline, deadlines.pending_deadline)
    )
    return next((decision for decision in decisions if decision is not None), None)


def _end(situation: Situation) -> Decision:
    if situation.pods:
        return ending.end(situation)
    return waiting.pending(situation.with_status(phase="Pending"))


_PHASES: Mapping[Phase, Callable[[Situation], Decision | None]] = {
    "Pending": waiting.pending,
    "Starting": _live,
    "Running": _live,
    "Restarting": _end,
    "Suspending": _end,
    "Suspended": waiting.suspended,
    "Succeeded": finished.finished,
    "Failed": finished.finished,
}
