"""What is said once a job has ended, and what is cleaned up, to the second."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api.v1alpha1.status import ProgressStatus, RLJobStatus
from rljob_operator.states import Deletion, QueueAction, Situation
from rljob_operator.states.finished import fail_job, finished, settled_seconds, succeed
from rljob_operator.states.situation.conditions import Reason, no, yes
from rljob_operator.states.situation.facts import PodFacts, Termination
from rljob_operator.states.tests.builders import NOW, TWO_PODS, ago, alive, changed, dead, pod

OF_THE_ATTEMPT: dict[str, Any] = {"active_seconds": 7, "pending_time": ago(200), "next_attempt_time": ago(150)}
AT_THE_END = {
    "completion_time": ago(0),
    "active_seconds": 107,  # 7 before, 100 since it was ready
    "ready_time": None,
    "pending_time": None,
    "next_attempt_time": None,
}


def over(*pods: PodFacts, lifecycle: str = "", completed: float | None = 50) -> Situation:
    """A job that succeeded 50 s ago; a worker that has ended leaves its pod within 100 s."""
    overrides = (TWO_PODS, f"lifecycle={{terminationGraceSeconds: 100, {lifecycle}}}")
    known: dict[str, Any] = {"phase": "Succeeded", "ready_time": None, "attempt": 1}
    return alive(*pods, overrides=overrides, completion_time=None if completed is None else ago(completed), **known)


def terminating(host: int, seconds_ago: float | None) -> PodFacts:
    """A pod whose worker ended so long ago, while its data buffer goes on."""
    at = None if seconds_ago is None else NOW - seconds_ago
    return pod(host, is_ready=False, ended=Termination("worker", 0, "Completed", "", at=at))


def deleted(situation: Situation) -> list[str]:
    return [deletion.name for deletion in finished(situation).deletions]


FIRST, SECOND = "small-train-0-a1", "small-train-1-a1"


def test_a_success_is_written_down_with_its_step() -> None:
    situation = alive(dead(0), dead(0, 1), progress=ProgressStatus(step=9), **OF_THE_ATTEMPT)
    decision = succeed(situation)
    assert changed(situation, decision) == {"phase": "Succeeded", **AT_THE_END}
    assert decision.claims == {
        "Complete": yes(Reason.ALL_PODS_DONE, "after step 9"),
        "Failed": no(Reason.ENDED_OTHERWISE),
    }
    assert succeed(alive(dead(0), dead(0, 1))).claims["Complete"] == yes(Reason.ALL_PODS_DONE)


def test_a_failure_is_written_down_with_its_reason() -> None:
    situation = alive(dead(65), dead(75, 1), **OF_THE_ATTEMPT)
    decision = fail_job(situation, Reason.BAD_DATA, "no rows")
    assert changed(situation, decision) == {"phase": "Failed", **AT_THE_END}
    assert decision.claims == {"Failed": yes(Reason.BAD_DATA, "no rows"), "Complete": no(Reason.ENDED_OTHERWISE)}


def test_seconds_of_a_gang_are_those_with_all_pods_ready() -> None:
    assert settled_seconds(RLJobStatus(active_seconds=7, ready_time=ago(100)), NOW + 0.9) == 107
    assert settled_seconds(RLJobStatus(active_seconds=7), NOW) == 7


@pytest.mark.parametrize(("policy", "goes"), [("All", [FIRST, SECOND]), ("Running", [SECOND]), ("None", [])])
def test_which_pods_go_at_the_end(policy: str, goes: list[str]) -> None:
    """A pod that is over has logs, and keeps no node."""
    decision = finished(over(dead(0), pod(1), lifecycle=f"cleanPodPolicy: {policy}"))
    assert [deletion.name for deletion in decision.deletions] == goes
    assert decision.queue is QueueAction.FINISH and not decision.deletes_job


def test_logs_stay_however_long_ago_the_job_ended() -> None:
    assert deleted(over(dead(0), completed=5000)) == []


def test_what_goes_has_no_time_for_a_checkpoint() -> None:
    assert finished(over(pod(0))).deletions == (Deletion(FIRST, f"uid-{FIRST}", 2),)


@pytest.mark.parametrize(
    ("ended_ago", "left", "goes"),
    # 100 s since the worker ended, or since the job did, 50 s ago, where no kubelet says when that was
    [(99, 1.0, []), (100, None, [FIRST]), (101, None, [FIRST]), (None, 50.0, [])],
)
def test_the_rest_of_a_pod_whose_worker_ended_has_as_long_as_a_checkpoint(
    ended_ago: float | None, left: float | None, goes: list[str]
) -> None:
    situation = over(terminating(0, ended_ago), dead(0, 1))
    assert (finished(situation).look_again_seconds, deleted(situation)) == (left, goes)


def test_a_job_that_ends_just_now_counts_from_now() -> None:
    decision = finished(over(terminating(0, None), completed=None))
    assert (decision.look_again_seconds, decision.deletions) == (100.0, ())


def test_the_first_pod_that_has_had_its_time_is_when_to_look_again() -> None:
    assert finished(over(terminating(0, 60), terminating(1, 70))).look_again_seconds == 30.0


@pytest.mark.parametrize("first", [dead(0), pod(0)], ids=["over", "running"])
def test_of_pods_that_are_over_or_go_at_once_nothing_is_awaited(first: PodFacts) -> None:
    assert finished(over(first)).look_again_seconds is None


def test_where_no_pod_is_deleted_none_is_looked_at() -> None:
    assert finished(over(terminating(0, 60), lifecycle="cleanPodPolicy: None")).look_again_seconds is None


def test_a_pod_that_does_not_go_is_deleted_by_force_after_the_end_of_the_job_too() -> None:
    decision = finished(over(pod(0, ends_at=NOW - 30)))
    assert decision.look_again_seconds == 90.0  # 120 s after its end
    assert decision.claims["Degraded"].reason is Reason.POD_STUCK_TERMINATING


@pytest.mark.parametrize(("ended_ago", "left"), [(50, 10.0), (59, 1.0), (60, None), (61, None)])
def test_a_job_is_deleted_when_its_time_has_come(ended_ago: float, left: float | None) -> None:
    situation = over(pod(0), lifecycle="ttlSecondsAfterFinished: 60", completed=ended_ago)
    decision = finished(situation)
    assert decision.deletes_job is (left is None) and decision.queue is QueueAction.FINISH
    assert decision.look_again_seconds == left
    assert (decision.deletions == ()) is (left is None), "garbage collection takes the pods"


def test_a_job_without_such_a_time_stays() -> None:
    decision = finished(over(completed=10**6))
    assert (decision.deletes_job, decision.look_again_seconds) == (False, None)
    unknown = finished(over(lifecycle="ttlSecondsAfterFinished: 60", completed=None))
    assert not unknown.deletes_job


def test_why_a_job_ended_is_said_also_where_it_is_deleted_at_once() -> None:
    situation = alive(dead(65), dead(65, 1), overrides=(TWO_PODS, "lifecycle={ttlSecondsAfterFinished: 0}"))
    decision = fail_job(situation, Reason.BAD_DATA, "no rows")
    assert decision.deletes_job and decision.status.phase == "Failed"
    assert decision.claims["Failed"] == yes(Reason.BAD_DATA, "no rows")
