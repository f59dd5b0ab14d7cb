"""Every event of a job is counted once, however often its status is written."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from rljob_api.v1alpha1.status import Condition, FailureStatus, ProgressStatus, RLJobStatus
from rljob_operator.reporting.job_metrics import CAUSES, JobMetrics, facts_of, report_status
from rljob_operator.vocabulary.key import Key
from rljob_operator.vocabulary.timestamps import seconds_of

KEY = Key("team", "small")
CREATED, PODS, PLACED, READY, END = (f"2026-01-01T00:0{minute}:00Z" for minute in range(5))
FAILURE = FailureStatus(attempt=1, pod="small-train-0-a1", cause="OOMKilled", time=END)


def scheduled(status: str = "True") -> Condition:
    return Condition(
        type="Scheduled", status=status, reason="X", message="", last_transition_time=PLACED, observed_generation=1
    )


class MetricRecorder:
    """Metrics of one job, notified of one status after the other."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._metrics = JobMetrics(self.registry, clock=lambda: seconds_of(END))
        self._last = RLJobStatus()

    def write(self, at: str, **changes: Any) -> None:
        """The status is written with these changes, and once more without any, which counts nothing."""
        after = self._last.model_copy(update=changes)
        report_status(self._metrics, KEY, self._last, after, CREATED, seconds_of(at))
        counted = generate_latest(self.registry)
        report_status(self._metrics, KEY, after, after, CREATED, seconds_of(at))
        assert generate_latest(self.registry) == counted
        self._last = after

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def failures(self, *causes: str) -> float:
        """Attempts that failed, of these causes or of any."""
        return sum(self.value("rljob_failures_total", reason=cause) or 0 for cause in causes or CAUSES)

    def observed(self, name: str, **labels: str) -> tuple[float | None, float | None]:
        """How often, and how long altogether."""
        return self.value(f"{name}_count", **labels), self.value(f"{name}_sum", **labels)


def test_a_life_is_measured_from_one_end_to_the_other_and_each_part_once() -> None:
    book = MetricRecorder()
    book.write(PODS, attempt=1, pods_created_time=PODS, start_time=PODS)
    book.write(PLACED, conditions=(scheduled(),))
    book.write(READY, ready_time=READY)
    book.write(END, completion_time=END, phase="Succeeded", ready_time=None)
    assert book.observed("rljob_queue_seconds") == (1, 60)
    assert book.observed("rljob_schedule_seconds") == (1, 60)
    assert book.observed("rljob_ready_seconds") == (1, 120)
    assert book.observed("rljob_duration_seconds", result="Succeeded") == (1, 180)


def test_only_the_first_attempt_has_waited_in_the_queue() -> None:
    book = MetricRecorder()
    book.write(PODS, attempt=1, pods_created_time=PODS)
    book.write(PLACED, attempt=2, pods_created_time=None)
    book.write(READY, pods_created_time=READY)
    assert book.observed("rljob_queue_seconds") == (1, 60)


def test_every_attempt_is_placed_and_ready_anew() -> None:
    book = MetricRecorder()
    book.write(PODS, attempt=1, pods_created_time=PODS)
    book.write(PLACED, conditions=(scheduled(),), ready_time=PLACED)
    book.write(READY, attempt=2, pods_created_time=PLACED, conditions=(scheduled("False"),), ready_time=None)
    book.write(END, conditions=(scheduled(),), ready_time=END)
    assert book.observed("rljob_schedule_seconds") == book.observed("rljob_ready_seconds") == (2, 60 + 120)


def test_an_attempt_that_failed_is_counted_once_of_the_cause_that_was_found_in_the_end() -> None:
    book = MetricRecorder()
    book.write(PLACED, attempt=1, last_failure=FAILURE.model_copy(update={"cause": "PodFailed"}))
    book.write(READY, last_failure=FAILURE)
    assert book.failures() == 0, "it may still come to light why"
    book.write(READY, restarts=1, phase="Restarting")
    book.write(END, attempt=2, phase="Running")
    assert (book.failures("OOMKilled"), book.failures()) == (1, 1)


def test_a_failure_that_ends_the_job_is_counted_too() -> None:
    book = MetricRecorder()
    book.write(READY, attempt=1, last_failure=FAILURE)
    book.write(END, phase="Failed", completion_time=END)
    assert (book.failures("OOMKilled"), book.failures()) == (1, 1)


def test_a_job_that_ends_otherwise_has_not_failed_again() -> None:
    """By a deadline, say, an attempt after the one that failed."""
    book = MetricRecorder()
    book.write(READY, attempt=2, last_failure=FAILURE)
    book.write(END, phase="Failed", completion_time=END)
    assert book.failures() == 0


def test_what_is_known_of_a_job_is_shown() -> None:
    book = MetricRecorder()
    progress = ProgressStatus(step=3, total_steps=10, last_step_time=READY)
    book.write(READY, phase="Running", progress=progress, restarts=3, counted_restarts=1, conditions=(scheduled(),))
    job = {"namespace": "team", "rljob": "small"}
    assert book.value("rljob_info", **job, phase="Running") == 1
    assert book.value("rljob_condition", **job, type="Scheduled", status="True") == 1
    assert (book.value("rljob_step", **job), book.value("rljob_total_steps", **job)) == (3, 10)
    assert book.value("rljob_last_progress_timestamp_seconds", **job) == seconds_of(READY)
    assert book.value("rljob_restarts_total", **job, counted="true") == 1
    assert book.value("rljob_restarts_total", **job, counted="false") == 2


def test_of_a_job_that_has_not_begun_nothing_is_known() -> None:
    facts = facts_of(RLJobStatus())
    assert (facts.step, facts.total_steps) == (None, None)
    assert facts.progress_timestamp_seconds is None and facts.ended_timestamp_seconds is None


def test_of_a_job_that_has_ended_it_is_known_when() -> None:
    assert facts_of(RLJobStatus(completion_time=END)).ended_timestamp_seconds == seconds_of(END)
