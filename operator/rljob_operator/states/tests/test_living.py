"""An attempt that runs: what ends it without a failure, and what is remembered of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rljob_operator.states import QueueAction, Refusal, Situation, decide
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.facts import PodFacts
from rljob_operator.states.situation.situation import Obstacle
from rljob_operator.states.tests.builders import EVICTED, NOW, TWO_PODS, ago, alive, changed, dead, pod, said
from rljob_operator.vocabulary.timestamps import timestamp

REFUSAL = Refusal(Reason.INVALID_SPEC, "no such field")
NO_ROOM = Obstacle(Reason.QUOTA_EXCEEDED, "no room for pods")


def starting(*pods, **status) -> Situation:
    """An attempt of which not every pod has been ready yet."""
    return alive(*pods, **{"phase": "Starting", "ready_time": None, **status})


def test_pods_that_should_be_there_outlive_a_spec_that_is_refused() -> None:
    assert decide(replace(alive(pod(0), pod(1)), refusal=REFUSAL)).status.phase == "Running"


def test_a_job_of_which_not_even_the_pods_are_known_fails() -> None:
    situation = alive(pod(0), pod(1))
    unknown = situation.spec.model_copy(update={"worker_groups": ()})
    decision = decide(replace(situation, spec=unknown, refusal=REFUSAL))
    assert said(decision, "Failed") == ("True", "InvalidSpec", "no such field")


@pytest.mark.parametrize("by_the_queue", [False, True], ids=["suspended", "evicted"])
def test_an_attempt_that_is_taken_back_counts_as_no_failure(by_the_queue: bool) -> None:
    overrides = (TWO_PODS,) if by_the_queue else (TWO_PODS, "suspend=true")
    of_the_attempt = {"pending_time": ago(200), "next_attempt_time": ago(150), "futile_attempts": 2}
    situation = alive(pod(0), pod(1), overrides=overrides, active_seconds=7, **of_the_attempt)
    if by_the_queue:
        situation = replace(situation, admission=EVICTED)
    decision = decide(situation)
    assert changed(situation, decision) == {
        "phase": "Suspending",
        "active_seconds": 107,  # 7 before, 100 since it was ready
        "ready_time": None,
        "pending_time": None,
        "next_attempt_time": None,
        "futile_attempts": 0,
    }
    assert [deletion.grace_seconds for deletion in decision.deletions] == [600, 600]


def test_an_eviction_is_said_in_the_queues_words() -> None:
    decision = decide(replace(alive(pod(0), pod(1)), admission=EVICTED))
    assert said(decision, "QuotaReserved") == ("False", "Evicted", "preempted")


@pytest.mark.parametrize("pods", [(pod(0), pod(1)), (dead(0, 0), dead(0, 1))], ids=["running", "done meanwhile"])
def test_an_attempt_with_fewer_steps_than_the_job_makes_room_for_another(pods: tuple[PodFacts, ...]) -> None:
    decision = decide(replace(alive(*pods), planned_steps=5))
    message = "stop.steps was 5 and is 10; 2 pods have 600 s for a checkpoint"
    assert decision.status.phase == "Suspending"
    assert said(decision, "Suspended") == ("False", "StepsRaised", message)
    assert [deletion.grace_seconds for deletion in decision.deletions] == [600, 600]
    assert decide(replace(alive(*pods), planned_steps=10)).status.phase in ("Running", "Succeeded")


def test_a_gang_that_cannot_be_made_whole_is_given_up() -> None:
    decision = decide(replace(starting(pod(0), pods_created_time=None), obstacle=NO_ROOM))
    assert decision.status.phase == "Restarting"
    assert said(decision, "Scheduled") == ("False", "QuotaExceeded", "no room for pods")
    assert said(decision, "Degraded") == ("True", "QuotaExceeded", "no room for pods")


def test_a_gang_that_is_whole_runs_on_whatever_its_other_children_meet() -> None:
    decision = decide(replace(alive(pod(0), pod(1)), obstacle=NO_ROOM))
    assert decision.status.phase == "Running"
    assert said(decision, "Degraded") == ("True", "QuotaExceeded", "no room for pods")


def test_half_a_gang_keeps_its_place_in_the_queue_while_it_is_completed() -> None:
    situation = starting(pod(0), pods_created_time=None)
    decision = decide(situation)
    assert changed(situation, decision) == {}
    assert (decision.keeps_children, decision.creates_pods, decision.queue) == (True, True, QueueAction.HOLD)


def test_it_is_noted_when_a_gang_is_whole() -> None:
    situation = starting(pod(0), pod(1, is_ready=False), pods_created_time=None)
    decision = decide(situation)
    assert changed(situation, decision) == {"pods_created_time": timestamp(NOW)}
    assert (decision.keeps_children, decision.creates_pods, decision.queue) == (True, False, QueueAction.HOLD)


def test_it_is_noted_when_a_gang_is_ready() -> None:
    situation = starting(pod(0), dead(0, 1), pending_time=ago(120), futile_attempts=3)
    assert changed(situation, decide(situation)) == {
        "phase": "Running",
        "ready_time": timestamp(NOW),
        "pending_time": None,
        "futile_attempts": 0,
    }


def test_a_gang_that_was_ready_runs() -> None:
    """Also where the phase was lost with what else the status said."""
    situation = alive(pod(0), pod(1, is_ready=False), phase="Starting")
    assert changed(situation, decide(situation)) == {"phase": "Running"}
