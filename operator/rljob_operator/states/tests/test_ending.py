"""Pods that go, and pods that do not."""

from __future__ import annotations

import pytest

from rljob_operator.states import Deletion, decide
from rljob_operator.states.tests.builders import NOW, TWO_PODS, alive, dead, pod, said
from rljob_operator.vocabulary.timestamps import timestamp

QUICK = (TWO_PODS, "lifecycle={forceDeleteSeconds: 4}")


def is_told(seconds: float, overrides: tuple[str, ...]) -> bool:
    """Whether a pod that should be gone since so many seconds is worth a condition."""
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


@pytest.mark.parametrize(("seconds_left", "deleted"), [(3.0, []), (3.5, [2])])
def test_a_grace_that_ends_within_a_second_of_ours_is_ours(seconds_left: float, deleted: list[int]) -> None:
    decision = decide(alive(pod(0, ends_at=NOW + seconds_left), phase="Restarting"))
    assert [each.grace_seconds for each in decision.deletions] == deleted


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
def test_how_late_a_pod_is_before_it_is_told(seconds: float, overrides: tuple[str, ...], worth_telling: bool) -> None:
    assert is_told(seconds, overrides) == worth_telling
