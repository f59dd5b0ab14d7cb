"""An attempt fails: its pods get a moment to say more, then the failure policy decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rljob_api.lifetime.failure_policy import DISRUPTION_TARGET, Because, RestartGang, StopJob, apply_failure_policy
from rljob_api.v1alpha1.status import BugStatus, FailureStatus, ProgressStatus, SuspectNode
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_operator.states import ending, finished
from rljob_operator.states.failures.faults import PodFault, cause, faults, noted
from rljob_operator.states.failures.suspects import avoided, blamed, may_be_the_nodes
from rljob_operator.states.situation.conditions import Claim, Reason, yes
from rljob_operator.states.situation.situation import Decision, Situation
from rljob_operator.vocabulary.timestamps import seconds_of

SETTLE_SECONDS = 2.0
"""How long after the first failure others are heard: a peer's 75 often comes before its cause."""
STOPPING_SETTLE_SECONDS = 30.0
"""Seconds to hear others if a worker stopped on request of its node: its peers soon stop, too, with a checkpoint."""


_REASON_OF_CODE: Mapping[ExitCode, Reason] = {
    ExitCode.INVALID_JOB: Reason.INVALID_JOB,
    ExitCode.BAD_DATA: Reason.BAD_DATA,
    ExitCode.STORAGE: Reason.STORAGE_FAILED,
    ExitCode.INTERRUPTED: Reason.INTERRUPTED,
}
_REASON_OF_LIMIT: Mapping[Because, Reason] = {
    "Restarts": Reason.RESTARTS_EXHAUSTED,
    "Rule": Reason.STOPPED_BY_RULE,
    "Repetition": Reason.SAME_BUG_TWICE,
}


def fail_attempt(situation: Situation) -> Decision | None:
    """What follows from the faults of the current attempt; None when there are none."""
    result = faults(situation)
    if not result:
        return None
    worst = cause(result)
    noticed = _noticed(situation)
    failure = noted(worst, situation.status.attempt, noticed or situation.timestamp)
    status = situation.with_status(last_failure=failure)
    left = seconds_of(failure.time) + _settle_seconds(situation, result) - situation.now
    if noticed is None or left > 0:
        return Decision(status.status, look_again_seconds=max(left, 0.0)).claiming("Degraded", _claim(worst))
    return _decided(status, result, worst)


def reason_of_code(decision: StopJob) -> Reason:
    """The reason of `Failed` for what stops a job."""
    return _REASON_OF_LIMIT.get(decision.because) or _REASON_OF_CODE.get(decision.code, Reason.POD_FAILED)


def restart(situation: Situation, claim: Claim, **changes: Any) -> Decision:
    """Give up the attempt; another follows when its pods are gone and the pause is over."""
    decision = ending.end(_given_up(situation, **changes))
    # Why it ended, before anything about how its pods go.
    return replace(decision, claims={**decision.claims, "Degraded": claim})


def _given_up(situation: Situation, **changes: Any) -> Situation:
    status = situation.status
    is_futile = status.ready_time is None
    num_futile = status.futile_attempts + 1 if is_futile else 0
    return situation.with_status(
        phase="Restarting",
        active_seconds=finished.settled_seconds(status, situation.now),
        ready_time=None,
        pending_time=status.pending_time or situation.timestamp,
        futile_attempts=num_futile,
        next_attempt_time=situation.after_a_pause(num_futile) if num_futile else None,
        **changes,
    )


def _decided(situation: Situation, result: Sequence[PodFault], worst: PodFault) -> Decision:
    status, policy = situation.status, situation.spec.failure_policy
    conditions = [DISRUPTION_TARGET] if any(fault.disruption for fault in result) else []
    bug = _bug(situation, worst)
    decision = apply_failure_policy(
        [fault.weight for fault in result],
        status.counted_restarts,
        policy,
        conditions,
        is_repeated=bug is not None and _is_same(status.last_bug, bug),
    )
    if isinstance(decision, StopJob):
        reason = reason_of_code(decision)
        return finished.fail_job(situation, reason, f"{_place(worst)}: {worst.message} ({decision.reason})")
    assert isinstance(decision, RestartGang), "a gang with a fault is not done"
    suspects = _suspects(situation, worst)
    return restart(
        situation,
        _claim(worst, _avoiding(avoided(suspects, situation.now))),
        suspect_nodes=suspects,
        restarts=status.restarts + 1,
        counted_restarts=status.counted_restarts + decision.counted,
        last_bug=bug,
    )


def _bug(situation: Situation, worst: PodFault) -> BugStatus | None:
    if worst.weight != ExitCode.BUG:
        return None
    progress = situation.status.progress or ProgressStatus()
    words = next((pod.ended for pod in situation.current if pod.name == worst.pod), None)
    return BugStatus(
        attempt=situation.status.attempt,
        step=words.step if words is not None and words.step is not None else progress.step,
        checkpoint_step=progress.checkpoint_step,
    )


def _is_same(before: BugStatus | None, bug: BugStatus) -> bool:
    return before is not None and (before.step, before.checkpoint_step) == (bug.step, bug.checkpoint_step)


def _suspects(situation: Situation, worst: PodFault) -> Sequence[SuspectNode]:
    node = next((pod.node for pod in situation.current if pod.name == worst.pod), "")
    known = situation.status.suspect_nodes
    return blamed(known, node, situation.now) if node and may_be_the_nodes(worst) else known


def _avoiding(nodes: Sequence[str]) -> str:
    return f"; the next attempt avoids {', '.join(nodes)}, where workers failed repeatedly" if nodes else ""


def _claim(fault: PodFault, more: str = "") -> Claim:
    return yes(fault.reason, f"{_place(fault)}: {fault.message}{more}")


def _place(fault: PodFault) -> str:
    container = f", container {fault.container}" if fault.container else ""
    code = f", exit code {fault.exit_code}" if fault.container else ""
    return f"pod {fault.pod}{container}{code}"


def _noticed(situation: Situation) -> str | None:
    failure: FailureStatus | None = situation.status.last_failure
    return failure.time if failure is not None and failure.attempt == situation.status.attempt else None


def _settle_seconds(situation: Situation, result: Sequence[PodFault]) -> float:
    stops = any(fault.exit_code == ExitCode.STOPPED for fault in result)
    if stops and all(fault.weight == ExitCode.RETRY for fault in result) and _may_say_more(situation):
        return STOPPING_SETTLE_SECONDS
    # One more: the time of the first failure is written in whole seconds.
    return SETTLE_SECONDS + 1.0 if _may_say_more(situation) else 0.0


def _may_say_more(situation: Situation) -> bool:
    return any(pod.ended is None for pod in situation.current)
