"""What is wrong with the pods of an attempt, as it is reported, and which of it explains the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.v1alpha1.status import FailureStatus, ProgressStatus
from rljob_operator.states.failures.faults import PodFault, cause, faults, is_going, lead_pod, noted
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.facts import PodFacts, ProgressAnswer, Termination, UnreachableLead
from rljob_operator.states.tests.builders import NOW, TWO_PODS, ago, alive, dead, pod, with_groups

FIRST = "small-train-0-a1"
SECOND = "small-train-1-a1"
STALLS = (TWO_PODS, "lifecycle={stallSeconds: 100, pendingSeconds: 300}")
EVICTION = "EvictionByEvictionAPI"


def only(first: PodFacts) -> list[PodFault]:
    """What is wrong with the first of two pods, of which the other is well."""
    return faults(alive(first, pod(1)))


def gone(last: PodFacts | None) -> list[PodFault]:
    """Faults once that pod is gone, having last been seen like this."""
    return faults(replace(alive(pod(1)), departed={} if last is None else {FIRST: last}))


def disruption(why: str, message: str = "") -> PodFault:
    said = message or f"the pod is being deleted ({why})"
    return PodFault(Reason.POD_DISRUPTED, FIRST, "", 75, said, disruption=why)


DELETED = PodFault(Reason.POD_DELETED, FIRST, "", 75, "the pod is gone; somebody deleted it", disruption="PodDeleted")


@pytest.mark.parametrize("first", [pod(0), dead(0), dead(0, ends_at=NOW - 5), pod(0, ends_at=NOW + 30)])
def test_pods_that_run_or_are_done_or_have_time_for_a_checkpoint_are_well(first: PodFacts) -> None:
    assert only(first) == []


@pytest.mark.parametrize(
    ("first", "reason", "done_to_it"),
    [
        (dead(1, message="words", reason="Error"), Reason.POD_FAILED, ""),
        (dead(137, message="words", reason="OOMKilled"), Reason.OUT_OF_MEMORY, ""),
        (dead(75, message="words", reason="OOMKilled", disruption=EVICTION), Reason.POD_DISRUPTED, EVICTION),
        (dead(143, message="words", ends_at=NOW + 5), Reason.POD_DISRUPTED, "PodDeleted"),
        (dead(143, message="words", ends_at=NOW + 5, disruption=EVICTION), Reason.POD_DISRUPTED, EVICTION),
    ],
)
def test_a_container_that_failed(first: PodFacts, reason: Reason, done_to_it: str) -> None:
    ended = first.ended
    assert ended is not None
    fault = PodFault(reason, FIRST, "worker", ended.exit_code, "words", said=ended.reason, disruption=done_to_it)
    assert only(first) == [fault]
    assert gone(first) == [fault], "the same where it went between two looks"


def test_a_data_buffer_that_was_started_again_has_lost_its_rows() -> None:
    ended = Termination("data-buffer", 137, "OOMKilled", "too many rows")
    fault = PodFault(Reason.DATA_BUFFER_RESTARTED, FIRST, "data-buffer", 137, "too many rows", said="OOMKilled")
    assert only(pod(0, num_buffer_restarts=1, buffer_ended=ended)) == [fault]


def test_a_data_buffer_that_says_nothing_of_its_end_is_reported_so() -> None:
    unknown = PodFault(Reason.DATA_BUFFER_RESTARTED, FIRST, "data-buffer", 75, "it was started again")
    assert only(pod(0, num_buffer_restarts=2)) == [unknown]
    silent = pod(0, num_buffer_restarts=1, buffer_ended=Termination("data-buffer", 0, "Completed", ""))
    words = "it ended and was started again, without its rows"
    fault = PodFault(Reason.DATA_BUFFER_RESTARTED, FIRST, "data-buffer", 75, words, said="Completed")
    assert only(silent) == [fault]


def test_a_worker_that_is_done_needs_its_data_buffer_no_more() -> None:
    assert only(dead(0, num_buffer_restarts=1)) == []


def test_a_pod_that_nobody_finds_any_more_is_a_pod_that_was_deleted() -> None:
    message = "somebody took label rljob.dev/job off the pod"
    fault = PodFault(Reason.POD_DELETED, FIRST, "", 75, message, disruption="PodDeleted")
    assert only(pod(0, is_out_of_sight=True)) == [fault]


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"ends_at": NOW}, "PodDeleted"),
        ({"ends_at": NOW, "disruption": EVICTION}, EVICTION),
        ({"ends_at": NOW + 30, "is_cut_off": True}, "NodeLost"),
        ({"ends_at": NOW + 30, "is_cut_off": True, "disruption": EVICTION}, EVICTION),
    ],
)
def test_a_pod_that_has_no_time_left_is_a_fault(facts: dict[str, Any], why: str) -> None:
    assert only(pod(0, **facts)) == [disruption(why)]


@pytest.mark.parametrize(
    ("last", "fault"),
    [
        (None, DELETED),
        (pod(0), DELETED),
        (dead(0), DELETED),
        (pod(0, disruption=EVICTION), disruption(EVICTION, f"the pod is gone ({EVICTION})")),
    ],
    ids=["never seen", "well", "done", "disrupted"],
)
def test_a_pod_that_is_gone_is_reported_by_its_last_state(last: PodFacts | None, fault: PodFault) -> None:
    assert gone(last) == [fault]


def test_pods_that_are_not_made_yet_are_not_missed() -> None:
    assert faults(alive(pod(1), pods_created_time=None)) == []


def stalling(step_ago: float | None, ready_ago: float, phase: str = "Running", stall: int = 100) -> list[PodFault]:
    """A lead pod answers that the last step, the third, was finished so long ago."""
    progress = ProgressStatus(step=3, last_step_time=None if step_ago is None else ago(step_ago))
    overrides = (TWO_PODS, f"lifecycle={{stallSeconds: {stall}, pendingSeconds: 300}}")
    seen = alive(pod(0), pod(1), overrides=overrides, ready_time=ago(ready_ago), progress=progress)
    return faults(replace(seen, progress=ProgressAnswer(phase=phase, attempt=1, step=3)))


@pytest.mark.parametrize(
    ("step_ago", "ready_ago", "field", "limit"),
    [(100, 500, "stallSeconds", 100), (None, 100, "stallSeconds", 100), (500, 100, "stallSeconds", 100)],
    ids=["to the second", "before the first step", "a step of an attempt before"],
)
def test_a_step_that_stands_still(step_ago: float | None, ready_ago: float, field: str, limit: int) -> None:
    message = f"step 3 stood still for lifecycle.{field}, {limit} s"
    assert stalling(step_ago, ready_ago) == [PodFault(Reason.STALLED, FIRST, "worker", 75, message, "", "")]


@pytest.mark.parametrize(("step_ago", "ready_ago"), [(99, 500), (500, 99), (None, 99)])
def test_a_step_stands_still_since_it_grew_or_the_gang_was_ready(step_ago: float | None, ready_ago: float) -> None:
    assert stalling(step_ago, ready_ago) == []


def test_what_loads_has_the_longer_of_two_times() -> None:
    assert stalling(None, 299, phase="Starting") == []
    (fault,) = stalling(None, 300, phase="Starting")
    assert fault.message == "step 3 stood still for lifecycle.pendingSeconds, 300 s"
    (fault,) = stalling(None, 400, phase="Starting", stall=400)
    assert fault.message == "step 3 stood still for lifecycle.stallSeconds, 400 s"
    (fault,) = stalling(None, 300, phase="Starting", stall=300)
    assert fault.message == "step 3 stood still for lifecycle.stallSeconds, 300 s"


@pytest.mark.parametrize("answer", [None, UnreachableLead("connection refused")])
def test_silence_is_no_step_that_stands_still(answer: UnreachableLead | None) -> None:
    seen = alive(pod(0), pod(1), overrides=STALLS, ready_time=ago(5000), progress=ProgressStatus(step=3))
    assert faults(replace(seen, progress=answer)) == []


def test_neither_is_an_answer_of_a_gang_that_was_never_ready_or_of_which_no_step_is_known() -> None:
    answer = ProgressAnswer(phase="Running", attempt=1, step=3)
    known: dict[str, Any] = {"overrides": STALLS, "progress": ProgressStatus(step=3, last_step_time=ago(5000))}
    assert faults(replace(alive(pod(0), pod(1), ready_time=None, **known), progress=answer)) == []
    unknown = alive(pod(0), pod(1), overrides=STALLS, ready_time=ago(5000))
    assert faults(replace(unknown, progress=answer)) == []


def test_the_lead_pod_is_the_first_of_the_group_that_serves_progress() -> None:
    groups = "workerGroups=[{name: train, replicas: 2}, {name: rollout, replicas: 2}]"
    seen = alive(overrides=(groups,))
    assert (lead_pod(seen), lead_pod(replace(seen, lead_group="rollout"))) == (FIRST, "small-rollout-0-a1")


def remembered(**changes: Any) -> list[PodFault]:
    """Both pods are well by now; of the attempt was noted what is not `changes`."""
    known: dict[str, Any] = {"attempt": 1, "pod": FIRST, "container": "worker", "exit_code": 137, "time": ago(1)}
    words = {"reason": "OOMKilled", "cause": "OOMKilled", "message": "words", "disruption": EVICTION}
    return faults(alive(pod(0), pod(1), last_failure=FailureStatus(**{**known, **words, **changes})))


def test_what_was_noted_of_this_attempt_is_known_though_its_pod_is_gone() -> None:
    fault = PodFault(Reason.OUT_OF_MEMORY, FIRST, "worker", 137, "words", said="OOMKilled", disruption=EVICTION)
    assert remembered() == [fault]
    assert [item.exit_code for item in remembered(exit_code=None)] == [75]
    assert [item.exit_code for item in remembered(exit_code=0)] == [0]


def test_the_word_of_another_version_is_a_pod_that_failed() -> None:
    assert [item.reason for item in remembered(cause="Melted")] == [Reason.POD_FAILED]


@pytest.mark.parametrize("changes", [{"attempt": 0}, {"attempt": 2}, {"cause": ""}])
def test_what_was_noted_of_another_attempt_or_by_nobody_is_no_fault_of_this_one(changes: dict[str, Any]) -> None:
    assert remembered(**changes) == []


def test_every_fault_is_found_and_what_was_noted_comes_first() -> None:
    failure = FailureStatus(attempt=1, pod="noted", cause="PodFailed", time=ago(1))
    result = faults(with_groups(alive(dead(75), dead(1, 2), last_failure=failure), train=3))
    assert [item.pod for item in result] == ["noted", FIRST, "small-train-2-a1", SECOND]


def fault(code: int, name: str) -> PodFault:
    return PodFault(Reason.POD_FAILED, name, "worker", code, "")


@pytest.mark.parametrize(
    ("codes", "explains"),
    [([75, 1, 75], 1), ([75, 75], 0), ([76, 75], 0), ([1, 65, 64], 2), ([70, 1], 0), ([137, 1], 1)],
    ids=["no echo", "the first of equals", "a stop is a lost peer", "what cannot work", "a bug", "no signal"],
)
def test_the_fault_that_explains_the_others(codes: list[int], explains: int) -> None:
    result = [fault(code, f"pod{index}") for index, code in enumerate(codes)]
    assert cause(iter(result)) is result[explains]


@pytest.mark.parametrize(("said", "reason"), [("OOMKilled", "OOMKilled"), ("", "PodFailed")])
def test_a_fault_as_the_status_keeps_it(said: str, reason: str) -> None:
    pod_fault = PodFault(Reason.POD_FAILED, FIRST, "worker", 137, "x" * 4097, said, EVICTION)
    assert noted(pod_fault, 3, ago(0)) == FailureStatus(
        attempt=3,
        pod=FIRST,
        container="worker",
        exit_code=137,
        reason=reason,
        cause="PodFailed",
        message="x" * 4096,
        time=ago(0),
        disruption=EVICTION,
    )


@pytest.mark.parametrize(
    ("leaving", "is_it"),
    [
        (pod(0), False),
        (pod(0, ends_at=NOW + 1), True),
        (pod(0, ends_at=NOW), False),
        (pod(0, ends_at=NOW + 1, is_cut_off=True), False),
        (dead(0, ends_at=NOW + 1), False),
    ],
    ids=["stays", "has time", "has none left", "has no node", "has ended"],
)
def test_whether_a_pod_may_use_its_grace(leaving: PodFacts, is_it: bool) -> None:
    assert is_going(alive(leaving, pod(1)), leaving) is is_it
