"""A failure settles, is reported with its place, and then ends the attempt or the job."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api.v1alpha1.status import BugStatus, FailureStatus, ProgressStatus
from rljob_operator.states import Decision, decide
from rljob_operator.states.tests.builders import NOW, TWO_PODS, ago, alive, changed, dead, failing, pod, said
from rljob_operator.vocabulary.timestamps import timestamp

FOUR_PODS = "workerGroups=[{name: train, replicas: 4}]"
STOPPED = 76


def test_the_first_failure_is_written_down_before_anything_is_done() -> None:
    situation = alive(dead(75, message="lost train-1"), pod(1))
    decision = decide(situation)
    assert changed(situation, decision) == {} and decision.deletions == ()
    assert decision.status.last_failure == FailureStatus(
        attempt=1,
        pod="small-train-0-a1",
        container="worker",
        exit_code=75,
        reason="Error",
        cause="PodFailed",
        message="lost train-1",
        time=timestamp(NOW),
    )
    message = "pod small-train-0-a1, container worker, exit code 75: lost train-1"
    assert said(decision, "Degraded") == ("True", "PodFailed", message)
    assert decision.look_again_seconds == 3.0


def test_a_failure_that_nobody_can_add_to_is_written_down_first_too() -> None:
    decision = decide(alive(dead(75), dead(75, 1)))
    assert (decision.status.phase, decision.look_again_seconds) == ("Running", 0.0)


@pytest.mark.parametrize(
    ("code", "seconds_ago", "left"),
    [(75, 1, 2.0), (75, 2, 1.0), (75, 3, None), (STOPPED, 29, 1.0), (STOPPED, 30, None)],
)
def test_how_long_others_are_heard(code: int, seconds_ago: float, left: float | None) -> None:
    """A worker that its node asked to stop is followed by others, with a checkpoint."""
    decision = decide(alive(dead(code), pod(1), last_failure=failing(code, seconds_ago)))
    assert decision.status.phase == ("Running" if left else "Restarting")
    if left:
        assert decision.look_again_seconds == left
        assert decision.status.last_failure is not None and decision.status.last_failure.time == ago(seconds_ago)


def test_others_than_those_asked_to_stop_shorten_the_wait() -> None:
    decision = decide(alive(dead(STOPPED), dead(70, 1), pod(2), pod(3), overrides=(FOUR_PODS,)))
    assert decision.look_again_seconds == 3.0


def test_a_restart_of_an_attempt_that_ran() -> None:
    counters = {"active_seconds": 7, "futile_attempts": 4, "restarts": 2, "counted_restarts": 1}
    situation = alive(dead(75), dead(75, 1), last_failure=failing(75), **counters)
    assert changed(situation, decide(situation)) == {
        "phase": "Restarting",
        "active_seconds": 107,
        "ready_time": None,
        "pending_time": timestamp(NOW),
        "futile_attempts": 0,
        "restarts": 3,
        "counted_restarts": 2,
    }


def test_a_restart_of_an_attempt_that_was_never_ready() -> None:
    known = {"phase": "Starting", "ready_time": None, "pending_time": ago(500), "futile_attempts": 1}
    situation = alive(dead(75), dead(75, 1), last_failure=failing(75), **known)
    assert changed(situation, decide(situation)) == {
        "phase": "Restarting",
        "futile_attempts": 2,
        # 10 s, shortened by a quarter as chance has it, and rounded up: 8.5 s, of which whole seconds are written
        "next_attempt_time": timestamp(NOW + 8),
        "restarts": 1,
        "counted_restarts": 1,
    }


def test_one_disrupted_pod_among_others_makes_a_restart_uncounted() -> None:
    situation = alive(dead(75), dead(75, 1, disruption="EvictionByEvictionAPI"), last_failure=failing(75))
    status = decide(situation).status
    assert (status.restarts, status.counted_restarts) == (1, 0)


@pytest.mark.parametrize(
    ("code", "policy", "reason"),
    [
        (64, "{}", "InvalidJob"),
        (65, "{}", "BadData"),
        (74, "{}", "StorageFailed"),
        (130, "{}", "Interrupted"),
        (70, "{maxRestarts: 0}", "RestartsExhausted"),
        (70, "{rules: [{onExitCodes: [70], action: Stop}]}", "StoppedByRule"),
    ],
)
def test_what_ends_the_job(code: int, policy: str, reason: str) -> None:
    known: dict[str, Any] = {"last_failure": failing(code), "overrides": (TWO_PODS, f"failurePolicy={policy}")}
    status, result, message = said(decide(alive(dead(code), dead(code, 1), **known)), "Failed")
    assert (status, result) == ("True", reason)
    assert message.startswith(f"pod small-train-0-a1, container worker, exit code {code}: ")


def test_why_it_ended_is_reported_before_how_its_pods_go() -> None:
    late = dead(75, 1, ends_at=NOW - 60)
    decision = decide(alive(dead(75), late, last_failure=failing(75, message="lost train-1")))
    message = "pod small-train-0-a1, container worker, exit code 75: lost train-1"
    assert said(decision, "Degraded") == ("True", "PodFailed", message)


def test_no_container_is_reported_of_a_pod_that_is_gone() -> None:
    decision = decide(alive(pod(0)))
    message = "pod small-train-1-a1: the pod is gone; somebody deleted it"
    assert said(decision, "Degraded") == ("True", "PodDeleted", message)


def bug(step: int, checkpoint: int | None, before: BugStatus | None, *overrides: str) -> Decision:
    """A worker ends with 70 after `step`; of the attempt before, `before` is remembered."""
    known = {"progress": ProgressStatus(step=3, checkpoint_step=checkpoint), "last_bug": before}
    pods = (dead(70, step=step), dead(75, 1))
    return decide(alive(*pods, overrides=(TWO_PODS, *overrides), last_failure=failing(70), **known))


def test_a_bug_is_remembered_with_its_step() -> None:
    assert bug(4, 2, None).status.last_bug == BugStatus(attempt=1, step=4, checkpoint_step=2)


def test_the_same_bug_at_the_same_step_stops_the_job() -> None:
    decision = bug(4, 2, BugStatus(attempt=0, step=4, checkpoint_step=2))
    assert decision.status.phase == "Failed" and said(decision, "Failed")[1] == "SameBugTwice"
    assert "twice at the same step" in said(decision, "Failed")[2]


@pytest.mark.parametrize("before", [BugStatus(attempt=0, step=3, checkpoint_step=2), BugStatus(attempt=0, step=4)])
def test_a_bug_at_another_step_or_after_a_checkpoint_is_another(before: BugStatus) -> None:
    decision = bug(4, 2, before)
    assert (decision.status.phase, decision.status.counted_restarts) == ("Restarting", 1)


def test_a_rule_of_the_user_goes_before() -> None:
    rule = "failurePolicy={maxRestarts: 3, rules: [{onExitCodes: [70], action: Restart}]}"
    assert bug(4, 2, BugStatus(attempt=0, step=4, checkpoint_step=2), rule).status.phase == "Restarting"


def test_any_other_end_makes_the_bug_forgotten() -> None:
    known = {"last_bug": BugStatus(attempt=0, step=4)}
    assert decide(alive(dead(75), dead(75, 1), last_failure=failing(75), **known)).status.last_bug is None
