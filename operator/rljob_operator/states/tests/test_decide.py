"""Tables: from what is seen to what is decided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.v1alpha1.status import Condition
from rljob_operator.states import QueueAction, Refusal, Situation, decide
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.tests.builders import (
    EVICTED,
    NOW,
    TWO_PODS,
    WAITING,
    ago,
    alive,
    dead,
    failing,
    pending,
    pod,
    said,
)
from rljob_operator.vocabulary.timestamps import timestamp

COMPLETE = Condition(type="Complete", status="True", reason="AllPodsDone", last_transition_time=ago(9))
FAILED = Condition(type="Failed", status="True", reason="BadData", last_transition_time=ago(9))

PHASES: list[tuple[str, Situation, str]] = [
    ("a new job begins", pending(), "Starting"),
    ("one made suspended does not", pending("suspend=true"), "Suspended"),
    ("nor one in a queue", replace(pending(), admission=WAITING), "Pending"),
    ("nor one that lacks something", replace(pending(), refusal=Refusal(Reason.CODE_MISSING, "no")), "Pending"),
    ("one that cannot run fails", replace(pending(), refusal=Refusal(Reason.INVALID_DAG, "no", True)), "Failed"),
    ("one that pauses waits", pending(phase="Pending", attempt=1, next_attempt_time=timestamp(NOW + 5)), "Pending"),
    ("a pause ends", pending(phase="Pending", attempt=1, next_attempt_time=timestamp(NOW)), "Starting"),
    ("waiting has an end", pending("lifecycle={pendingSeconds: 60}", pending_time=ago(60)), "Failed"),
    ("ready pods run", alive(pod(0), pod(1), phase="Starting", ready_time=None), "Running"),
    ("not before all are", alive(pod(0), pod(1, is_ready=False), phase="Starting", ready_time=None), "Starting"),
    ("one that is unready for a moment runs on", alive(pod(0), pod(1, is_ready=False)), "Running"),
    ("pods that are done are enough", alive(dead(0), dead(0, 1)), "Succeeded"),
    ("all of them", alive(dead(0), pod(1)), "Running"),
    ("done outranks suspension", alive(dead(0), dead(0, 1), overrides=(TWO_PODS, "suspend=true")), "Succeeded"),
    ("a failure settles first", alive(dead(75), pod(1)), "Running"),
    ("then restarts", alive(dead(75), pod(1), last_failure=failing(75)), "Restarting"),
    ("at once with nobody left to speak", alive(dead(75), dead(75, 1), last_failure=failing(75, 0)), "Restarting"),
    ("what was noted counts, though its pod is gone", alive(pod(1), last_failure=failing(65)), "Failed"),
    ("a peer's 75 hides no 65", alive(dead(75), dead(65, 1), last_failure=failing(75)), "Failed"),
    ("a queue takes its quota back", replace(alive(pod(0), pod(1)), admission=EVICTED), "Suspending"),
    ("suspended pods go first", alive(pod(0), pod(1), phase="Suspending"), "Suspending"),
    ("a new attempt waits for the last pod of the old", alive(pod(1), phase="Restarting"), "Restarting"),
    ("and begins when it is gone", alive(phase="Restarting"), "Starting"),
    ("a suspended job stays so", pending("suspend=true", phase="Suspended"), "Suspended"),
    ("what succeeded stays so", pending(phase="Succeeded", conditions=(COMPLETE,)), "Succeeded"),
    ("what failed stays so", pending(phase="Failed", conditions=(FAILED,)), "Failed"),
    ("final conditions outrank an edited phase", alive(pod(0), pod(1), phase="Failed"), "Running"),
]  # fmt: skip


@pytest.mark.parametrize(("situation", "phase"), [row[1:] for row in PHASES], ids=[row[0] for row in PHASES])
def test_phase_that_follows(situation: Situation, phase: str) -> None:
    assert decide(situation).status.phase == phase


def test_half_a_gang_that_was_never_whole_is_completed() -> None:
    decision = decide(alive(pod(0), phase="Starting", pods_created_time=None, ready_time=None))
    assert decision.creates_pods and decision.status.attempt == 1


def test_missing_pod_of_a_gang_that_was_whole_is_not_made_again() -> None:
    decision = decide(alive(pod(0)))
    assert not decision.creates_pods
    failure = decision.status.last_failure
    assert failure is not None and (failure.pod, failure.cause) == ("small-train-1-a1", "PodDeleted")


@pytest.mark.parametrize(
    ("phase", "grace_seconds"), [("Restarting", 2), ("Suspending", 600)], ids=["failed", "suspended"]
)
def test_grace_of_what_is_deleted(phase: Any, grace_seconds: int) -> None:
    decision = decide(alive(pod(0), pod(1), phase=phase))
    assert [deletion.grace_seconds for deletion in decision.deletions] == [grace_seconds] * 2


@pytest.mark.parametrize(
    ("seconds_left", "grace", "deleted"),
    [
        *((500.0, 600, [2]), (2.5, 3, [2]), (2.5, 2, []), (-119.0, 2, [])),
        *((-120.0, 2, [0]), (-500.0, 600, [0]), (-120.0, 0, []), (-5000.0, 0, [])),
    ],
)
def test_pods_that_go_too_slowly(seconds_left: float, grace: int, deleted: list[int]) -> None:
    """A longer grace is cut short, and 120 s after its end a pod is deleted by force, once."""
    decision = decide(alive(pod(0, ends_at=NOW + seconds_left, grace_seconds=grace), phase="Restarting"))
    assert [deletion.grace_seconds for deletion in decision.deletions] == deleted


@pytest.mark.parametrize(("num_futile", "shortest", "longest"), [(0, 2.5, 5), (1, 5, 10), (3, 20, 40), (9, 150, 300)])
def test_pause_doubles_with_every_futile_attempt(num_futile: int, shortest: float, longest: float) -> None:
    situation = alive(dead(75), dead(75, 1), ready_time=None, futile_attempts=num_futile, last_failure=failing(75))
    until = decide(situation).status.next_attempt_time
    assert until is not None and timestamp(NOW + shortest) <= until <= timestamp(NOW + longest + 1)


def test_attempt_that_ran_is_followed_without_pause() -> None:
    decision = decide(alive(dead(75), dead(75, 1), last_failure=failing(75), futile_attempts=4))
    assert decision.status.next_attempt_time is None and decision.status.futile_attempts == 0


@pytest.mark.parametrize(
    ("situation", "queue"),
    [
        (pending(), QueueAction.HOLD),
        (replace(pending(), admission=WAITING), QueueAction.HOLD),
        (replace(pending(), admission=EVICTED), QueueAction.RELEASE),
        (pending("suspend=true"), QueueAction.LEAVE),
        (replace(pending(), refusal=Refusal(Reason.STORAGE_CLAIM_MISSING, "no")), QueueAction.LEAVE),
        (alive(pod(0), pod(1)), QueueAction.HOLD),
        (alive(pod(0), phase="Restarting"), QueueAction.HOLD),
        (alive(pod(0), phase="Suspending"), QueueAction.NONE),
        (alive(dead(0), dead(0, 1)), QueueAction.FINISH),
        (alive(dead(65), dead(65, 1), last_failure=failing(65)), QueueAction.FINISH),
        (replace(pending(), refusal=Refusal(Reason.INVALID_SPEC, "no", True)), QueueAction.FINISH),
    ],
)
def test_what_is_reported_to_the_queue(situation: Situation, queue: QueueAction) -> None:
    assert decide(situation).queue is queue


def test_clock_of_pending_stands_while_the_job_queues() -> None:
    decision = decide(replace(pending(pending_time=ago(5000)), admission=WAITING))
    assert decision.status.pending_time is None and said(decision, "QuotaReserved")[1] == "QuotaPending"


def test_lost_node_is_distinguished_from_a_drained_one() -> None:
    """Both have their grace; a node that is cut off will not use it."""
    drained, lost = pod(0, ends_at=NOW + 60), pod(0, ends_at=NOW + 60, is_cut_off=True, is_ready=False)
    assert decide(alive(drained, pod(1))).status.last_failure is None
    failure = decide(alive(lost, pod(1))).status.last_failure
    assert failure is not None and failure.disruption == "NodeLost"
