"""What is said of a job: every condition in every phase, and the numbers beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.v1alpha1.status import Condition, ConditionType, ProgressStatus, RLJobStatus, WorkerGroupStatus
from rljob_operator.observing.progress import progress_of
from rljob_operator.states import Decision, Situation
from rljob_operator.states.report import obstructed, reported
from rljob_operator.states.situation.conditions import Claim, Reason, no, unknown, yes
from rljob_operator.states.situation.facts import (
    Admission,
    AdmissionState,
    PodFacts,
    ProgressAnswer,
    Stuck,
    UnreachableLead,
)
from rljob_operator.states.situation.situation import Obstacle
from rljob_operator.states.tests.builders import (
    EVICTED,
    NOW,
    TWO_PODS,
    WAITING,
    ago,
    alive,
    dead,
    pending,
    pod,
    with_groups,
)

WELL = no(Reason.AS_EXPECTED)
LASTING: dict[ConditionType, Claim] = {
    "Accepted": yes(Reason.VALID),
    "Suspended": no(Reason.NOT_SUSPENDED),
    "QuotaReserved": yes(Reason.NO_QUEUE),
    "Complete": no(Reason.NOT_FINISHED),
    "Failed": no(Reason.NOT_FINISHED),
}
IDLE: dict[ConditionType, Claim] = {**LASTING, "Ready": no(Reason.NO_PODS), "Progressing": no(Reason.NOT_RUNNING)}
NOT_STARTED = no(Reason.NOT_STARTED)
OBSTACLE = Obstacle(Reason.FORBIDDEN, "may not delete pods")
FORBIDDEN = yes(Reason.FORBIDDEN, "may not delete pods")
ADMITTED = Admission(AdmissionState.ADMITTED)
IN_A_PAUSE = ago(-5)


def claims(situation: Situation, made: dict[ConditionType, Claim] | None = None) -> dict[ConditionType, Claim]:
    """What is claimed of each condition where a decision claims what it `made`."""
    return dict(reported(situation, Decision(situation.status, made or {})).claims)


def known(*types: ConditionType, reason: str = "PodFailed", message: str = "") -> tuple[Condition, ...]:
    """Conditions that were said before."""
    return tuple(
        Condition(type=item, status="True", reason=reason, message=message, last_transition_time=ago(9))
        for item in types
    )


def starting(*pods: PodFacts, **status: Any) -> Situation:
    return alive(*pods, **{"phase": "Starting", "ready_time": None, **status})


def test_a_job_that_waits() -> None:
    said = {**IDLE, "Scheduled": NOT_STARTED, "Degraded": WELL}
    assert claims(pending()) == said
    assert claims(pending(conditions=known("Scheduled", "Degraded"))) == said
    assert claims(pending(next_attempt_time=IN_A_PAUSE)) == said, "nothing was said that could stay"


def test_in_a_pause_it_stays_known_why_the_attempt_before_ended() -> None:
    paused = pending(next_attempt_time=IN_A_PAUSE, conditions=known("Scheduled", "Degraded"))
    assert claims(paused) == IDLE


def test_while_pods_go_it_stays_known_why() -> None:
    going = alive(pod(0), phase="Restarting", conditions=known("Scheduled", "Degraded"))
    ending = no(Reason.PODS_ENDING, "1 pods of attempt 1")
    assert claims(going) == {**IDLE, "Scheduled": ending}
    assert claims(going.with_status(next_attempt_time=IN_A_PAUSE)) == IDLE
    refused = no(Reason.FORBIDDEN, "may not delete pods")
    assert claims(replace(going, obstacle=OBSTACLE)) == {**IDLE, "Scheduled": refused}


@pytest.mark.parametrize("more", [{}, {"next_attempt_time": IN_A_PAUSE, "conditions": known("Degraded")}])
def test_a_job_that_is_being_suspended(more: dict[str, Any]) -> None:
    message = "2 pods have 600 s for a checkpoint"
    assert claims(alive(pod(0), pod(1), phase="Suspending", **more)) == {
        **IDLE,
        "Suspended": no(Reason.SUSPENDING, message),
        "Scheduled": no(Reason.PODS_ENDING, "2 pods of attempt 1"),
        "Degraded": WELL,
    }


@pytest.mark.parametrize("more", [{}, {"next_attempt_time": IN_A_PAUSE, "conditions": known("Degraded")}])
def test_a_suspended_job_says_how_it_goes_on(more: dict[str, Any]) -> None:
    message = "spec.suspend is true; set it to false to go on from the last checkpoint"
    assert claims(pending(phase="Suspended", **more)) == {
        **IDLE,
        "Suspended": yes(Reason.SUSPENDED, message),
        "Scheduled": NOT_STARTED,
        "Degraded": WELL,
    }


def test_a_gang_that_runs() -> None:
    said = {**LASTING, "Scheduled": yes(Reason.ALL_PODS_PLACED), "Ready": yes(Reason.ALL_PODS_READY), "Degraded": WELL}
    assert claims(alive(pod(0), dead(0, 1))) == {**said, "Progressing": unknown(Reason.NO_STEP_YET)}
    assert claims(starting(pod(0), pod(1))) == {**said, "Progressing": no(Reason.NOT_RUNNING)}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_what_is_final_stays(phase: Any) -> None:
    said = {"Suspended": no(Reason.NOT_SUSPENDED), "Progressing": no(Reason.NOT_RUNNING), "Degraded": WELL}
    assert claims(alive(phase=phase)) == {**said, "Ready": no(Reason.NO_PODS)}
    assert claims(alive(pod(0), phase=phase)) == {**said, "Ready": no(Reason.PODS_NOT_READY)}


@pytest.mark.parametrize(
    ("admission", "phase", "claim"),
    [
        (ADMITTED, "Pending", yes(Reason.QUOTA_RESERVED)),
        (WAITING, "Pending", no(Reason.QUOTA_PENDING, "3 jobs are before it")),
        (EVICTED, "Pending", no(Reason.EVICTED, "preempted")),
        (WAITING, "Suspended", yes(Reason.QUOTA_RESERVED)),
        (WAITING, "Starting", no(Reason.QUOTA_PENDING, "3 jobs are before it")),
    ],
)
def test_what_a_queue_gives(admission: Admission, phase: Any, claim: Claim) -> None:
    waiting = replace(pending(phase=phase), admission=admission)
    assert claims(replace(waiting, has_queue=True))["QuotaReserved"] == claim
    assert claims(waiting)["QuotaReserved"] == yes(Reason.NO_QUEUE)


@pytest.mark.parametrize(
    ("situation", "claim"),
    [
        (starting(pod(0), pods_created_time=None), no(Reason.CREATING_PODS, "2 pods of attempt 1")),
        (starting(pod(0), pod(1, node="")), no(Reason.WAITING_FOR_NODES, "1 of 2 pods have no node")),
        (
            starting(pod(0, node=""), pod(1, node="", unschedulable="no node has 8 GPUs")),
            no(Reason.WAITING_FOR_NODES, "2 of 2 pods have no node: no node has 8 GPUs"),
        ),
        (starting(pod(0), pod(1)), yes(Reason.ALL_PODS_PLACED)),
    ],
)
def test_where_pods_are(situation: Situation, claim: Claim) -> None:
    assert claims(situation)["Scheduled"] == claim


def gang_of(total: int, num_ready: int) -> Situation:
    pods = (pod(host, is_ready=host < num_ready) for host in reversed(range(total)))
    return with_groups(starting(*pods), train=total)


@pytest.mark.parametrize(
    ("situation", "claim"),
    [
        (gang_of(2, 1), no(Reason.PODS_STARTING, "not ready: small-train-1-a1")),
        (alive(pod(0), pod(1, is_ready=False)), no(Reason.PODS_NOT_READY, "not ready: small-train-1-a1")),
        (starting(pod(0)), no(Reason.PODS_STARTING, "not ready: pods that are not made yet")),
        (alive(pod(0), dead(75, 1)), no(Reason.PODS_NOT_READY, "not ready: small-train-1-a1")),
        (alive(pod(0), dead(0, 1)), yes(Reason.ALL_PODS_READY)),
    ],
)
def test_which_pods_are_not_ready(situation: Situation, claim: Claim) -> None:
    assert claims(situation)["Ready"] == claim


@pytest.mark.parametrize(("total", "more"), [(5, ""), (6, " and 1 more"), (8, " and 3 more")])
def test_at_most_five_pods_are_named(total: int, more: str) -> None:
    named = ", ".join(f"small-train-{host}-a1" for host in range(5))
    assert claims(gang_of(total, 0))["Ready"].message == f"not ready: {named}{more}"


STEP = ProgressAnswer(phase="Running", attempt=1, step=3)
BEFORE = known("Progressing", reason="ProgressUnreachable", message="timed out")


@pytest.mark.parametrize(
    ("answer", "step", "before", "claim"),
    [
        (STEP, 3, (), yes(Reason.STEP_ADVANCING)),
        (STEP, 3, BEFORE, yes(Reason.STEP_ADVANCING)),
        (STEP, 0, (), unknown(Reason.NO_STEP_YET)),
        (STEP, None, (), unknown(Reason.NO_STEP_YET)),
        (UnreachableLead("refused"), 3, BEFORE, unknown(Reason.PROGRESS_UNREACHABLE, "refused")),
        (None, 3, BEFORE, unknown(Reason.PROGRESS_UNREACHABLE, "timed out")),
        (None, 3, (), yes(Reason.STEP_ADVANCING)),
        (None, 3, known("Progressing", reason="StepAdvancing"), yes(Reason.STEP_ADVANCING)),
        (None, 3, known("Degraded", reason="ProgressUnreachable"), yes(Reason.STEP_ADVANCING)),
    ],
)
def test_how_training_goes_on(answer: Any, step: int | None, before: tuple[Condition, ...], claim: Claim) -> None:
    progress = None if step is None else ProgressStatus(step=step)
    seen = replace(alive(pod(0), pod(1), progress=progress, conditions=before), progress=answer)
    assert claims(seen)["Progressing"] == claim
    assert claims(seen.with_status(phase="Starting"))["Progressing"] == no(Reason.NOT_RUNNING)


ALIKE = "GroupsAlike: step 4: in 100% of groups all answers have the same reward"


@pytest.mark.parametrize(
    ("answer", "claim"),
    [
        (replace(STEP, warnings=()), yes(Reason.NO_WARNING)),
        (replace(STEP, warnings=(ALIKE, "NoGradient: 0")), no(Reason.NOT_LEARNING, f"{ALIKE}; NoGradient: 0")),
        (replace(STEP, warnings=(ALIKE,), attempt=2), None),  # another attempt's
        (STEP, None),  # a lead of an earlier version
        (UnreachableLead("refused"), None),
        (
            progress_of(b'{"attempt": 1, "step": 4, "warnings": ["' + ALIKE.encode() + b'", 7, ""]}'),
            no(Reason.NOT_LEARNING, ALIKE),
        ),
        (progress_of(b'{"attempt": 1, "step": 4, "warnings": "none"}'), None),
    ],
)
def test_a_policy_that_does_not_learn_is_said_as_its_lead_says_it(answer: Any, claim: Claim | None) -> None:
    seen = replace(alive(pod(0), pod(1), progress=ProgressStatus(step=3)), progress=answer)
    assert claims(seen).get("Healthy") == claim


def test_a_container_that_cannot_start_is_named() -> None:
    stuck = pod(1, is_ready=False, stuck=Stuck("worker", Reason.IMAGE_PULL_FAILED, "no such image"))
    message = "pod small-train-1-a1, container worker: no such image"
    assert claims(starting(pod(0), stuck))["Degraded"] == yes(Reason.IMAGE_PULL_FAILED, message)
    assert claims(replace(starting(pod(0), stuck), obstacle=OBSTACLE))["Degraded"] == FORBIDDEN


def test_pods_that_somebody_deletes_are_named() -> None:
    going = alive(pod(0), pod(1, ends_at=NOW + 5))
    assert claims(going)["Degraded"] == yes(Reason.POD_TERMINATING, "small-train-1-a1")


@pytest.mark.parametrize("situation", [pending(), alive(pod(0), pod(1)), alive(phase="Failed")])
def test_what_a_look_met_is_said_where_nothing_else_is_wrong(situation: Situation) -> None:
    met = replace(situation, obstacle=OBSTACLE)
    other = yes(Reason.POD_STUCK_TERMINATING, "small-train-0-a1 should be gone")
    assert claims(met)["Degraded"] == FORBIDDEN
    assert claims(met, {"Degraded": other})["Degraded"] == other


@pytest.mark.parametrize("situation", [pending(), alive(pod(0), pod(1)), alive(pod(0), phase="Restarting")])
def test_so_are_changes_that_have_no_effect(situation: Situation) -> None:
    edited = replace(situation, spec_changes="spec.model was changed")
    other = yes(Reason.POD_STUCK_TERMINATING, "small-train-0-a1 should be gone")
    assert claims(edited)["Degraded"] == yes(Reason.SPEC_CHANGED, "spec.model was changed")
    assert claims(edited, {"Degraded": other})["Degraded"] == other


def test_a_decision_knows_better() -> None:
    waiting = no(Reason.PREDECESSOR_ENDING, "children are still there")
    assert claims(pending(), {"Scheduled": waiting}) == {**IDLE, "Scheduled": waiting, "Degraded": WELL}


def test_the_status_counts_pods_of_the_attempt_that_was_decided() -> None:
    pods = (
        pod(0, 2, num_buffer_restarts=2),
        pod(1, 2, is_ready=False, num_buffer_restarts=1),
        replace(dead(75), name="small-train-2-a2", node=""),
        replace(dead(0), name="small-rollout-0-a2", group="rollout"),
        pod(0, 1),
    )
    situation = replace(with_groups(alive(*pods), train=3, rollout=1), generation=7)
    decision = Decision(situation.with_status(attempt=2).status, keeps_children=True)
    result = reported(situation, decision)
    assert result.status.worker_groups == (
        WorkerGroupStatus(name="train", desired=3, scheduled=2, ready=1, failed=1, buffer_restarts=3),
        WorkerGroupStatus(name="rollout", desired=1, scheduled=1, ready=0, failed=0),
    )
    assert (result.status.ready, result.status.attempt, result.keeps_children) == ("1/4", 2, True)
    assert result.status.observed_generation == 7
    assert {condition.observed_generation for condition in result.status.conditions} == {7}
    assert {condition.type: (condition.status, condition.reason) for condition in result.status.conditions} == {
        type_: (claim.status, claim.reason) for type_, claim in result.claims.items()
    }


def test_what_keeps_a_look_from_any_decision_is_said_of_what_was_known() -> None:
    before = RLJobStatus(phase="Running", observed_generation=4, conditions=known("Ready"))
    after = obstructed(before, OBSTACLE, NOW)
    degraded = Condition(
        type="Degraded",
        status="True",
        reason="Forbidden",
        message="may not delete pods",
        last_transition_time=ago(0),
        observed_generation=4,
    )
    assert after == before.model_copy(update={"conditions": (*known("Ready"), degraded)})


def test_groups_of_a_job_that_never_began() -> None:
    result = reported(pending(TWO_PODS), Decision(RLJobStatus()))
    assert (result.status.ready, result.status.worker_groups) == ("0/2", (WorkerGroupStatus(name="train", desired=2),))
    assert result.status.observed_generation == 1
