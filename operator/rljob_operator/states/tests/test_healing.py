"""A status that was lost or edited by hand is brought back to what can be."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api.v1alpha1.status import Condition
from rljob_operator.states import Situation
from rljob_operator.states.healing import healed
from rljob_operator.states.situation.facts import PodFacts
from rljob_operator.states.tests.builders import NOW, ago, alive, pending, pod
from rljob_operator.vocabulary.timestamps import timestamp


def ended(type_: Any, status: Any = "True") -> tuple[Condition, ...]:
    return (Condition(type=type_, status=status, reason="Why", last_transition_time=ago(9)),)


def written(situation: Situation) -> dict[str, Any]:
    """What differs from the status that was found."""
    before = dict(situation.status)
    return {name: value for name, value in healed(situation).status if value != before[name]}


@pytest.mark.parametrize("phase", ["Pending", "Running", "Failed", "Succeeded"])
def test_final_conditions_decide_the_phase(phase: Any) -> None:
    for type_, final in (("Complete", "Succeeded"), ("Failed", "Failed")):
        situation = alive(pod(0, 3), phase=phase, conditions=ended(type_))
        assert healed(situation).status.phase == final
        assert healed(situation).status.attempt == 1, "no pod changes what is final"


@pytest.mark.parametrize(("attempt", "phase"), [(0, "Pending"), (1, "Starting"), (2, "Starting")])
@pytest.mark.parametrize("conditions", [(), ended("Failed", "False"), ended("Complete", "Unknown")])
@pytest.mark.parametrize("edited", ["Succeeded", "Failed"])
def test_a_phase_alone_ends_no_job(attempt: int, phase: str, conditions: Any, edited: Any) -> None:
    assert written(pending(phase=edited, attempt=attempt, conditions=conditions)) == {"phase": phase}


@pytest.mark.parametrize("phase", ["Pending", "Starting", "Running", "Restarting", "Suspending", "Suspended"])
def test_any_other_phase_stays(phase: Any) -> None:
    assert written(alive(pod(0), pod(1), phase=phase)) == {}


@pytest.mark.parametrize("pods", [(), (pod(0, 1),), (pod(0, 2),)], ids=["none", "older", "the same"])
def test_pods_of_no_later_attempt_change_nothing(pods: tuple[PodFacts, ...]) -> None:
    situation = alive(*pods, attempt=2)
    assert healed(situation) is situation


def test_pods_of_a_later_attempt_mean_that_the_status_was_lost() -> None:
    plan = "0123456789abcdef"
    lost = pending(phase="Pending", plan_hash="old", plan_config_map="small-plan-old")
    seen = lost.with_pods([pod(0, 1, plan_hash="first"), pod(1, 2, plan_hash=plan), pod(0, 1, plan_hash="first")])
    assert written(seen) == {
        "attempt": 2,
        "phase": "Starting",
        "pods_created_time": timestamp(NOW),
        "plan_hash": plan,
        "plan_config_map": "small-plan-0123456789",
    }


def test_pods_that_say_no_plan_leave_the_one_that_is_known() -> None:
    known = pending(phase="Running", plan_hash="old", plan_config_map="small-plan-old", attempt=1)
    assert written(known.with_pods([pod(0, 2)])) == {
        "attempt": 2,
        "phase": "Starting",
        "pods_created_time": timestamp(NOW),
    }
