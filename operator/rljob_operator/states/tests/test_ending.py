"""Pods that go, and pods that do not."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.states import Deletion, decide
from rljob_operator.states.tests.builders import NOW, TWO_PODS, alive, dead, pod, said
from rljob_operator.vocabulary.timestamps import timestamp

QUICK = (TWO_PODS, "lifecycle={forceDeleteSeconds: 4}")


def is_reported(seconds: float, overrides: tuple[str, ...]) -> bool:
    """Whether a pod that should have been gone for n seconds is worth a condition."""
    decision = decide(alive(pod(0, ends_at=NOW - seconds), phase="Restarting", overrides=overrides))
    return "Degraded" in decision.claims


def test_a_deletion_names_one_pod_and_no_later_one_of_its_name() -> None:
    decision = decide(alive(pod(0), phase="Restarting"))
    assert decision.deletions == (Deletion(name="small-train-0-a1", uid="uid-small-train-0-a1", grace_seconds=2),)


def test_a_finished_pod_goes_too() -> None:
    assert len(decide(alive(dead(75), dead(0, 1), phase="Restarting")).deletions) == 2


def test_when_the_last_pod_is_gone_the_pause_before_the_next_attempt_is_kept() -> None:
    decision = decide(alive(phase="Restarting", next_attempt_time=timestamp(NOW + 5)))
    assert (decision.status.phase, decision.look_again_seconds) == ("Pending", 5.0)


def test_a_pod_that_only_a_finalizer_holds_needs_no_look_and_no_deletion() -> None:
    """120 s after its end it was deleted by force; that whoever holds it lets go is an event."""
    held = pod(0, ends_at=NOW - 500, grace_seconds=0, finalizers=("example.com/held",))
    decision = decide(alive(held, phase="Restarting"))
    assert (decision.deletions, decision.look_again_seconds) == ((), None)
    message = "small-train-0-a1 should be gone; whoever put finalizer example.com/held on must take it off"
    assert said(decision, "Degraded") == ("True", "PodStuckTerminating", message)


@pytest.mark.parametrize("phase", ["Starting", "Running", "Suspending", "Succeeded"])
def test_a_pod_of_another_attempt_goes_wherever_it_turns_up(phase: Any) -> None:
    situation = alive(pod(0, 2), pod(1, 2), pod(0), attempt=2, phase=phase)
    assert "uid-small-train-0-a1" in {deletion.uid for deletion in decide(situation).deletions}


def test_no_pod_is_made_beside_one_of_another_attempt_that_may_run() -> None:
    creating: dict[str, Any] = {"attempt": 2, "phase": "Starting", "pods_created_time": None, "ready_time": None}
    decision = decide(alive(pod(0), **creating))
    assert not decision.creates_pods and [deletion.grace_seconds for deletion in decision.deletions] == [2]
    assert said(decision, "Scheduled") == (
        "False",
        "PodsEnding",
        "small-train-0-a1 of another attempt must be gone first",
    )
    over = decide(alive(dead(75), **creating))
    assert over.creates_pods and [deletion.name for deletion in over.deletions] == ["small-train-0-a1"]


def test_the_next_look_is_when_the_first_pod_is_to_be_deleted_by_force() -> None:
    # 120 s after its end: in 90 s and in 150 s
    decision = decide(alive(pod(0, ends_at=NOW + 30), pod(1, ends_at=NOW - 30), phase="Restarting"))
    assert decision.look_again_seconds == 90.0


def test_pods_that_should_be_gone_are_named() -> None:
    seconds = {0: 11, 1: 9, 2: 500, 3: 12, 4: 13, 5: 14, 6: 15}
    pods = [pod(host, ends_at=NOW - ago) for host, ago in seconds.items()]
    named = "small-train-0-a1, small-train-2-a1, small-train-3-a1, small-train-4-a1, small-train-5-a1"
    message = f"{named} should be gone; deleted by force after 120 s"
    decision = decide(alive(*pods, phase="Restarting"))
    assert said(decision, "Degraded") == ("True", "PodStuckTerminating", message)


@pytest.mark.parametrize(
    ("seconds", "overrides", "worth_telling"),
    [
        (-5.0, (TWO_PODS,), False),
        (10.0, (TWO_PODS,), False),
        (10.5, (TWO_PODS,), True),
        # half of the time until force is used, where that is less
        (1.7, QUICK, False),
        (2.5, QUICK, True),
    ],
)
def test_how_late_a_pod_is_before_it_is_reported(
    seconds: float, overrides: tuple[str, ...], worth_telling: bool
) -> None:
    assert is_reported(seconds, overrides) == worth_telling
