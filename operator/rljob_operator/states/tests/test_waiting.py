"""What it takes until an attempt begins, and what is remembered then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rljob_operator.states import Deletion, QueueAction, Refusal, Situation, decide
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.situation import Obstacle
from rljob_operator.states.tests.builders import (
    EVICTED,
    NOW,
    TWO_PODS,
    WAITING,
    ago,
    alive,
    changed,
    dead,
    pending,
    pod,
    said,
)
from rljob_operator.vocabulary.timestamps import timestamp

SUSPENDED = (TWO_PODS, "suspend=true")


def test_first_attempt() -> None:
    situation = pending()
    decision = decide(situation)
    assert changed(situation, decision) == {
        "phase": "Starting",
        "attempt": 1,
        "plan_hash": "abc",
        "plan_config_map": "small-plan-abc",
        "start_time": timestamp(NOW),
        "pending_time": timestamp(NOW),
    }
    assert decision.keeps_children and decision.creates_pods and decision.queue is QueueAction.HOLD


def test_next_attempt_forgets_what_was_of_the_last() -> None:
    of_the_last = {"plan_hash": "old", "plan_config_map": "small-plan-old", "pods_created_time": ago(500)}
    situation = pending(
        attempt=4,
        start_time=ago(900),
        pending_time=ago(30),
        ready_time=ago(400),
        next_attempt_time=timestamp(NOW),
        **of_the_last,
    )
    assert changed(situation, decide(situation)) == {
        "phase": "Starting",
        "attempt": 5,
        "plan_hash": "abc",
        "plan_config_map": "small-plan-abc",
        "pods_created_time": None,
        "ready_time": None,
        "next_attempt_time": None,
    }


def test_suspension_before_an_attempt() -> None:
    situation = pending("suspend=true", pending_time=ago(30), next_attempt_time=timestamp(NOW + 5))
    assert changed(situation, decide(situation)) == {
        "phase": "Suspended",
        "pending_time": None,
        "next_attempt_time": None,
    }


def test_a_suspended_job_does_nothing_and_holds_no_place_in_a_queue() -> None:
    situation = pending("suspend=true", phase="Suspended", attempt=1)
    decision = decide(situation)
    assert changed(situation, decision) == {}
    assert decision.queue is QueueAction.LEAVE and not decision.creates_pods


def test_a_resumed_job_waits_from_now_on() -> None:
    """How long it was suspended is not charged to pendingSeconds."""
    situation = replace(pending(phase="Suspended", attempt=1, pending_time=ago(10**6)), refusal=_refusal())
    assert changed(situation, decide(situation)) == {"phase": "Pending", "pending_time": timestamp(NOW)}


def test_pods_of_a_suspended_job_end_with_all_their_grace() -> None:
    decision = decide(alive(pod(0), phase="Suspended", overrides=SUSPENDED))
    assert decision.status.phase == "Suspending"
    assert decision.deletions == (Deletion("small-train-0-a1", "uid-small-train-0-a1", 600),)


def test_pods_that_run_though_no_attempt_does_go_first() -> None:
    decision = decide(alive(pod(0), dead(75, 1), phase="Pending"))
    assert decision.status.phase == "Restarting" and not decision.creates_pods
    assert [deletion.name for deletion in decision.deletions] == ["small-train-0-a1", "small-train-1-a1"]


def test_pods_that_are_over_are_in_nobodys_way() -> None:
    assert decide(alive(dead(75), dead(75, 1), phase="Pending")).status.attempt == 2


def test_the_clock_of_a_job_that_lacks_something_goes_on() -> None:
    new, old = pending(), pending(pending_time=ago(30))
    assert decide(replace(new, refusal=_refusal())).status.pending_time == timestamp(NOW)
    assert decide(replace(old, refusal=_refusal())).status.pending_time == ago(30)


def test_what_a_job_lacks_is_said_and_looked_for_again() -> None:
    decision = decide(replace(pending(), refusal=_refusal()))
    assert said(decision, "Accepted") == ("False", "CodeMissing", "there is no my-code")
    assert decision.look_again_seconds == 15.0


def test_a_spec_that_no_time_will_mend_fails_the_job_at_once() -> None:
    decision = decide(replace(pending(), refusal=Refusal(Reason.INVALID_DAG, "a cycle", is_final=True)))
    assert said(decision, "Accepted") == ("False", "InvalidDAG", "a cycle")
    assert said(decision, "Failed") == ("True", "InvalidDAG", "a cycle")


@pytest.mark.parametrize(
    ("refused", "why"), [(True, ": there is no my-code"), (False, "")], ids=["for a reason", "in a pause"]
)
def test_waiting_too_long_fails_and_says_for_what(refused: bool, why: str) -> None:
    situation = pending("lifecycle={pendingSeconds: 60}", pending_time=ago(60), next_attempt_time=timestamp(NOW + 9))
    decision = decide(replace(situation, refusal=_refusal() if refused else None))
    message = f"the job could not start within lifecycle.pendingSeconds, 60 s{why}"
    assert said(decision, "Failed") == ("True", "PendingTimeout", message)


def test_children_of_a_predecessor_are_waited_for() -> None:
    decision = decide(replace(pending(), is_predecessor_ending=True))
    message = "children of a deleted job of the same name are still there"
    assert said(decision, "Scheduled") == ("False", "PredecessorEnding", message)
    assert decision.look_again_seconds == 1.0 and not decision.creates_pods


@pytest.mark.parametrize(
    ("situation", "reason", "message"),
    [
        (replace(pending(), admission=WAITING), "QuotaPending", "3 jobs are before it"),
        (replace(pending(), admission=EVICTED), "Evicted", "preempted"),
        (
            replace(pending(), admission=WAITING, obstacle=Obstacle(Reason.FORBIDDEN, "no right to create")),
            "Forbidden",
            "no right to create",
        ),
    ],
    ids=["waits", "evicted", "cannot be asked"],
)
def test_what_a_queue_says_is_said(situation: Situation, reason: str, message: str) -> None:
    assert said(decide(situation), "QuotaReserved") == ("False", reason, message)


def test_a_pause_is_looked_at_again_when_it_is_over() -> None:
    decision = decide(pending(attempt=1, next_attempt_time=timestamp(NOW + 5)))
    assert decision.look_again_seconds == 5.0 and not decision.creates_pods


def _refusal() -> Refusal:
    return Refusal(Reason.CODE_MISSING, "there is no my-code")
