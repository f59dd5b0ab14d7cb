"""What an attempt may not take longer for, to the second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.v1alpha1.status import Condition
from rljob_operator.states import Decision, Situation, decide
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.facts import PodFacts, Stuck
from rljob_operator.states.tests.builders import TWO_PODS, ago, alive, pod, said

NO_IMAGE = Stuck("worker", Reason.IMAGE_PULL_FAILED, "no such image")
UNPLACED: dict[str, Any] = {"node": "", "is_ready": False, "unschedulable": "no node has 8 GPUs"}


def active(seconds: int) -> Decision:
    """Ready since 100 s, and `seconds` in earlier attempts; 150 s are allowed."""
    limit = "lifecycle={activeSeconds: 150}"
    return decide(alive(pod(0), pod(1), active_seconds=seconds, overrides=(TWO_PODS, limit)))


def starting(*pods: PodFacts, created: int, pending: int = 0, overrides: tuple[str, ...] = ()) -> Situation:
    """Pods made `created` seconds ago for a job that waits since `pending` seconds, and never all ready."""
    known = {"pods_created_time": ago(created), "pending_time": ago(pending), "ready_time": None}
    return alive(*pods, phase="Starting", overrides=(TWO_PODS, *overrides), **known)


def degraded_for(situation: Situation, seconds: float, reason: Reason = Reason.IMAGE_PULL_FAILED) -> Situation:
    """As if Degraded had said so for n seconds."""
    degraded = Condition(type="Degraded", status="True", reason=str(reason), last_transition_time=ago(seconds))
    return situation.with_status(conditions=(degraded,))


def gang(*pods: PodFacts, created: int = 100) -> Situation:
    return starting(*pods, created=created, overrides=("scheduling={timeoutSeconds: 100}",))


def pending(seconds: int, *pods: PodFacts) -> Decision:
    return decide(starting(*pods, created=10, pending=seconds, overrides=("lifecycle={pendingSeconds: 60}",)))


def test_active_seconds_count_all_attempts() -> None:
    decision = active(50)
    message = "the job ran for lifecycle.activeSeconds, 150 s, over all attempts"
    assert said(decision, "Failed") == ("True", "ActiveDeadlineExceeded", message)


def test_a_job_is_looked_at_when_its_active_seconds_are_over() -> None:
    decision = active(49)
    assert (decision.status.phase, decision.look_again_seconds) == ("Running", 1.0)


def test_a_container_that_cannot_start_fails_the_job_in_the_end() -> None:
    stuck = pod(1, is_ready=False, stuck=NO_IMAGE)
    decision = decide(degraded_for(starting(pod(0), stuck, created=4000), 900))
    message = "pod small-train-1-a1, container worker, cannot start since 900 s: no such image"
    assert said(decision, "Failed") == ("True", "ImagePullFailed", message)
    early = decide(degraded_for(starting(pod(0), stuck, created=4000), 899))
    assert (early.status.phase, early.look_again_seconds) == ("Starting", 1.0)
    assert decide(degraded_for(starting(pod(0), pod(1, is_ready=False), created=4000), 900)).status.phase == "Starting"


@pytest.mark.parametrize("reason", [Reason.POD_TERMINATING, None])
def test_what_was_said_of_something_else_is_not_how_long_a_container_cannot_start(reason: Reason | None) -> None:
    """After an hour in a queue one transient error of a registry is not a reason to fail."""
    situation = starting(pod(0), pod(1, is_ready=False, stuck=NO_IMAGE), created=4000)
    decision = decide(situation if reason is None else degraded_for(situation, 4000, reason))
    assert decision.status.phase == "Starting" and said(decision, "Degraded")[1] == "ImagePullFailed"


def test_a_container_cannot_have_been_stuck_before_its_pod_was_made() -> None:
    stuck = pod(1, is_ready=False, stuck=NO_IMAGE)
    assert decide(degraded_for(starting(pod(0), stuck, created=899), 4000)).status.phase == "Starting"


@pytest.mark.parametrize(("nodes", "counted"), [(0, False), (1, True)])
def test_the_queue_of_a_scheduler_that_waits_for_all_does_not_count(nodes: int, counted: bool) -> None:
    pods = [pod(host, is_ready=False) if host < nodes else pod(host, **UNPLACED) for host in (0, 1)]
    waiting = starting(*pods, created=100, pending=5000, overrides=("lifecycle={pendingSeconds: 6000}",))
    status = decide(replace(waiting, waits_for_all=True)).status
    assert (status.pending_time is not None) is counted


def test_the_clock_of_pending_seconds_starts_with_the_first_place() -> None:
    situation = starting(pod(0, is_ready=False), pod(1, **UNPLACED), created=100)
    placed = replace(situation, waits_for_all=True).with_status(pending_time=None)
    assert decide(placed).status.pending_time == ago(0)


def test_pods_that_are_not_ready_in_time_fail_the_job() -> None:
    decision = pending(60, pod(0), pod(1, **UNPLACED))
    message = "not all pods were ready within lifecycle.pendingSeconds, 60 s; 1 are not: no node has 8 GPUs"
    assert said(decision, "Failed") == ("True", "PendingTimeout", message)


def test_nothing_is_made_up_of_pods_that_have_a_node() -> None:
    decision = pending(60, pod(0, is_ready=False), pod(1, is_ready=False))
    assert said(decision, "Failed")[2].endswith("60 s; 2 are not")


def test_the_first_of_several_deadlines_is_when_to_look_again() -> None:
    # 60 s - 50 s for all to be ready; 600 s - 10 s for all to have a node
    decision = pending(50, pod(0), pod(1, is_ready=False))
    assert (decision.status.phase, decision.look_again_seconds) == ("Starting", 10.0)


def test_pods_that_were_once_ready_have_no_such_deadline() -> None:
    known = {"pods_created_time": ago(5000), "pending_time": ago(5000)}
    overrides = (TWO_PODS, "lifecycle={pendingSeconds: 60}")
    decision = decide(alive(pod(0), pod(1, is_ready=False), overrides=overrides, **known))
    assert (decision.status.phase, decision.look_again_seconds) == ("Running", float("inf"))


def test_half_a_gang_gives_its_places_back() -> None:
    decision = decide(gang(pod(0, is_ready=False), pod(1, **UNPLACED)))
    message = "only 1 of 2 pods found a node within scheduling.timeoutSeconds, 100 s"
    assert decision.status.phase == "Restarting"
    assert said(decision, "Scheduled") == ("False", "GangTimedOut", message)
    assert said(decision, "Degraded") == ("True", "GangTimedOut", message)


@pytest.mark.parametrize(
    "situation",
    [
        gang(pod(0, **UNPLACED), pod(1, **UNPLACED)),
        gang(pod(0, is_ready=False), pod(1, is_ready=False)),
        gang(pod(0, is_ready=False), pod(1, **UNPLACED), created=99),
        replace(gang(pod(0, is_ready=False), pod(1, **UNPLACED)), waits_for_all=True),
    ],
    ids=["no place to give", "all placed", "early", "the scheduler sees to it"],
)
def test_any_other_gang_keeps_waiting(situation: Situation) -> None:
    assert decide(situation).status.phase == "Starting"


def test_a_deadline_that_passed_without_consequence_is_not_waited_for() -> None:
    """Pods that all have a node may become ready for pendingSeconds, 7200 s by default."""
    late = gang(pod(0, is_ready=False), pod(1, is_ready=False), created=100)
    assert decide(late).look_again_seconds == 7200.0
    early = gang(pod(0, is_ready=False), pod(1, is_ready=False), created=99)
    assert decide(early).look_again_seconds == 1.0
