"""Pods of other attempts go, and nothing is made beside one that may still run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rljob_operator.states import Decision, Deletion, Situation
from rljob_operator.states.situation.conditions import Reason, no
from rljob_operator.states.strays import without_strays
from rljob_operator.states.tests.builders import NOW, alive, dead, pod

OWN = Deletion("small-train-0-a2", "uid-small-train-0-a2", 600)


def beginning(*pods: Any, **changes: Any) -> tuple[Situation, Decision]:
    """The second attempt is about to be made."""
    situation = alive(*pods, attempt=2, phase="Starting", pods_created_time=None, ready_time=None)
    return situation, replace(Decision(situation.status, creates_pods=True), **changes)


def stray(host: int, attempt: int = 1) -> Deletion:
    name = f"small-train-{host}-a{attempt}"
    return Deletion(name, f"uid-{name}", 2)


def test_pods_of_the_attempt_that_is_meant_stay() -> None:
    situation, decision = beginning(pod(0, 2), pod(1, 2))
    assert without_strays(situation, decision) == decision


def test_the_attempt_that_is_meant_is_the_one_just_decided() -> None:
    situation, decision = beginning(pod(0, 2))
    next_one = replace(decision, status=decision.status.model_copy(update={"attempt": 3}))
    assert without_strays(situation, next_one).deletions == (stray(0, 2),)


def test_strays_go_after_what_was_to_go_anyway_and_each_once() -> None:
    """Longer grace that was decided already is kept: two deletions of one pod would race."""
    known = Deletion("small-train-1-a1", "uid-small-train-1-a1", 600)
    situation, decision = beginning(pod(0, 3), pod(1), pod(0, 2), deletions=(OWN, known))
    assert without_strays(situation, decision).deletions == (OWN, known, stray(0, 3))


def test_no_pod_is_made_beside_a_stray_that_may_run() -> None:
    situation, decision = beginning(*(pod(host) for host in (5, 0, 1, 2, 3, 4)))
    result = without_strays(situation, decision)
    first = ", ".join(f"small-train-{host}-a1" for host in range(5))
    assert not result.creates_pods
    assert result.claims == {"Scheduled": no(Reason.PODS_ENDING, f"{first} of another attempt must be gone first")}


def test_one_that_is_over_is_in_nobodys_way() -> None:
    situation, decision = beginning(dead(75))
    result = without_strays(situation, decision)
    assert result.creates_pods and result.claims == {} and result.deletions == (stray(0),)


@pytest.mark.parametrize("creates_pods", [True, False])
def test_what_does_not_go_is_said_where_it_is_waited_for(creates_pods: bool) -> None:
    situation, decision = beginning(pod(0, ends_at=NOW - 30), creates_pods=creates_pods)
    result = without_strays(situation, decision)
    assert ("Degraded" in result.claims, "Scheduled" in result.claims) == (creates_pods, creates_pods)
    # 120 s after its end it is deleted by force
    assert result.look_again_seconds == (90.0 if creates_pods else None)
