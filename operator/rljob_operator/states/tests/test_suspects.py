"""Which nodes an attempt keeps away from, and for how long."""

from __future__ import annotations

import pytest

from rljob_api.v1alpha1.status import SuspectNode
from rljob_operator.states import decide
from rljob_operator.states.failures.faults import PodFault
from rljob_operator.states.failures.suspects import SECONDS, avoided, blamed, may_be_the_nodes
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.tests.builders import NOW, ago, alive, dead, failing, pod, said
from rljob_operator.vocabulary.timestamps import timestamp

KILLED = 137


def suspect(name: str, failures: int, seconds_ago: float = 0.0) -> SuspectNode:
    return SuspectNode(name=name, failures=failures, last_time=ago(seconds_ago))


@pytest.mark.parametrize(
    ("failures", "seconds_ago", "is_avoided"),
    [(1, 0, False), (2, 0, True), (3, 3599, True), (2, 3600, False), (5, 7200, False)],
)
def test_a_node_is_avoided_after_two_failures_until_it_is_forgotten(
    failures: int, seconds_ago: float, is_avoided: bool
) -> None:
    assert avoided([suspect("a", failures, seconds_ago)], NOW) == (("a",) if is_avoided else ())


def test_failures_add_up_and_the_forgotten_begin_anew() -> None:
    known = (suspect("a", 2, SECONDS), suspect("b", 1, 60), suspect("c", 4, 30))
    assert blamed(known, "b", NOW) == (suspect("c", 4, 30), suspect("b", 2))
    assert blamed(known, "a", NOW) == (suspect("b", 1, 60), suspect("c", 4, 30), suspect("a", 1))


def test_the_status_keeps_the_latest() -> None:
    known = tuple(suspect(f"n{number}", 1, 16 - number) for number in range(16))
    assert [item.name for item in blamed(known, "new", NOW)] == [f"n{number}" for number in range(1, 16)] + ["new"]


@pytest.mark.parametrize(
    ("code", "is_blamed"),
    [(KILLED, True), (1, True), (139, True), (75, False), (70, False)],
)
def test_a_node_is_blamed_for_what_may_be_its_fault(code: int, is_blamed: bool) -> None:
    decision = decide(alive(dead(code, node="a"), pod(1, node="b"), last_failure=failing(code)))
    assert decision.status.phase == "Restarting"
    assert decision.status.suspect_nodes == ((suspect("a", 1),) if is_blamed else ())


def test_a_node_that_is_avoided_from_now_on_is_reported() -> None:
    once = (suspect("a", 1, 60),)
    decision = decide(alive(dead(KILLED, node="a"), pod(1), last_failure=failing(KILLED), suspect_nodes=once))
    assert decision.status.suspect_nodes == (SuspectNode(name="a", failures=2, last_time=timestamp(NOW)),)
    status, _, message = said(decision, "Degraded")
    assert status == "True" and message.endswith("; the next attempt avoids a, where workers failed repeatedly")


@pytest.mark.parametrize(
    ("fault", "may_be"),
    [
        (PodFault(Reason.POD_FAILED, "p", "worker", 74, ""), True),
        (PodFault(Reason.POD_FAILED, "p", "worker", 76, ""), False),
        (PodFault(Reason.POD_FAILED, "p", "worker", 64, ""), False),
        (PodFault(Reason.POD_DISRUPTED, "p", "worker", 137, "", disruption="EvictionByEvictionAPI"), False),
        (PodFault(Reason.POD_DELETED, "p", "", 137, ""), False),
    ],
)
def test_disks_may_fail_and_what_was_done_to_a_pod_is_no_nodes_fault(fault: PodFault, may_be: bool) -> None:
    assert may_be_the_nodes(fault) is may_be
