"""What follows from a situation by itself, and how a decision grows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rljob_api.v1alpha1.status import RLJobStatus, ServiceStatus
from rljob_operator.states import Decision
from rljob_operator.states.situation.conditions import Reason, no, yes
from rljob_operator.states.situation.facts import PodFacts
from rljob_operator.states.situation.situation import Refusal, earliest
from rljob_operator.states.tests.builders import ago, alive, pending, pod

GROUPS = "workerGroups=[{name: train, replicas: 2}, {name: rollout, replicas: 1}]"
SERVICES = "services=[{name: judge, run: 'mine:app'}, {name: my_model, run: 'mine:app'}]"


def model(name: str, service: str, start: int = 1) -> PodFacts:
    return PodFacts(name=name, uid=f"uid-{name}", group="", attempt=0, service=service, start=start)


def test_pods_that_are_expected_are_those_of_the_attempt() -> None:
    situation = alive(pod(1, 3), pod(0, 2), attempt=3, overrides=(GROUPS,))
    assert situation.expected == {
        "small-train-0-a3": "train",
        "small-train-1-a3": "train",
        "small-rollout-0-a3": "rollout",
    }
    assert [item.name for item in situation.current] == ["small-train-1-a3"]
    assert situation.missing == ("small-train-0-a3", "small-rollout-0-a3")


def test_a_service_is_missed_once_its_pod_was_there() -> None:
    seen = {"start": 2, "start_time": ago(5)}
    services = (ServiceStatus(name="judge", **seen), ServiceStatus(name="my_model", **seen))
    there = replace(pending(SERVICES, services=services), service_pods=(model("small-judge-r2", "judge", 2),))
    assert there.missing_services == ("small-my.model-r2",)
    assert pending(SERVICES, services=(ServiceStatus(name="judge"),)).missing_services == ()


def test_pods_of_services_are_distinguished_from_those_of_the_gang() -> None:
    judge = model("small-judge-r1", "judge")
    situation = pending().with_pods(iter([pod(0), judge, pod(1)]))
    assert (situation.pods, situation.service_pods) == ((pod(0), pod(1)), (judge,))


def test_a_refusal_may_be_mended_unless_it_says_otherwise() -> None:
    assert not Refusal(Reason.CODE_MISSING, "no").is_final


def test_a_decision_does_nothing_that_it_does_not_say() -> None:
    decision = Decision(RLJobStatus())
    does = (decision.keeps_children, decision.creates_pods, decision.starts_services, decision.deletions)
    assert (*does, decision.deletes_job) == (False, False, (), (), False)


def test_a_claim_that_was_made_stays() -> None:
    first, second = no(Reason.NO_PODS), yes(Reason.ALL_PODS_READY)
    decision = Decision(RLJobStatus()).claiming("Ready", first).claiming("Ready", second).claiming("Failed", second)
    assert decision.claims == {"Ready": first, "Failed": second}


@pytest.mark.parametrize(
    ("known", "seconds", "again"),
    [(None, None, None), (5.0, None, 5.0), (None, 3.0, 3.0), (5.0, 3.0, 3.0), (3.0, 5.0, 3.0), (3.0, -1.0, 0.0)],
)
def test_the_earlier_look_counts(known: float | None, seconds: float | None, again: float | None) -> None:
    decision = Decision(RLJobStatus(), look_again_seconds=known)
    assert decision.again_within(seconds).look_again_seconds == again


def test_the_first_of_some_times() -> None:
    assert earliest(iter([3.0, 1.0, 2.0])) == 1.0 and earliest([]) is None
