"""Prometheus metrics of the jobs: what the reconcile last saw of each."""

from __future__ import annotations

import time
from collections import Counter as CountOf
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rljob_api.v1alpha1.status import RLJobStatus
from rljob_operator.states.situation.conditions import Reason, is_true
from rljob_operator.vocabulary.key import Key
from rljob_operator.vocabulary.timestamps import seconds_of, seconds_since

CAUSES = (
    Reason.POD_FAILED,
    Reason.OUT_OF_MEMORY,
    Reason.POD_DISRUPTED,
    Reason.POD_DELETED,
    Reason.DATA_BUFFER_RESTARTED,
    Reason.STALLED,
)
"""What ends an attempt."""

_SHOWN_SECONDS = 3600.0
_WAIT_BUCKETS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 6 * 3600, 24 * 3600)
_RUN_BUCKETS = (60, 300, 900, 1800, 3600, 2 * 3600, 6 * 3600, 12 * 3600, 24 * 3600, 3 * 86400, 7 * 86400, 30 * 86400)


@dataclass(frozen=True)
class JobFacts:
    """What there is to say about one job now."""

    phase: str
    conditions: Mapping[str, str] = field(default_factory=dict)
    """From type to status: True, False, Unknown."""
    step: int | None = None
    """The last finished step. None: not known."""
    total_steps: int | None = None
    progress_timestamp_seconds: float | None = None
    """When `step` last grew, since the epoch."""
    restarts: int = 0
    counted_restarts: int = 0
    """Those of `restarts` that maxRestarts counts."""
    ended_timestamp_seconds: float | None = None
    """When it ended, since the epoch.  None: it has not."""
    generators: tuple[int, int, int] | None = None
    """Pods of the elastic group: wanted, ready, and lost so far.  None: no group is elastic."""


class JobMetrics:
    """Report with `show` what a job is like and with `forget` that it is gone: then its series are, too.

    A job that ended keeps them for an hour, in which alerts see how, and is one of a number from then on: thousands may
    stay.
    """

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._facts: dict[Key, JobFacts] = {}
        self._queue = _histogram(registry, "rljob_queue_seconds", "From creation to the first pods", _WAIT_BUCKETS)
        self._schedule = _histogram(
            registry, "rljob_schedule_seconds", "From an attempt's pods to all of them having nodes", _WAIT_BUCKETS
        )
        self._ready = _histogram(
            registry, "rljob_ready_seconds", "From an attempt's pods to all of them being ready", _WAIT_BUCKETS
        )
        self._duration = Histogram(
            "rljob_duration_seconds",
            "From the first pods to the end: Succeeded or Failed",
            ["result"],
            buckets=_RUN_BUCKETS,
            registry=registry,
        )
        self._failures = Counter("rljob_failures", "Failed attempts by cause", ["reason"], registry=registry)
        for reason in CAUSES:
            self._failures.labels(reason)  # a series that begins at 1 has no first increase
        registry.register(self)

    def show(self, key: Key, facts: JobFacts) -> None:
        """Take what a reconcile saw, in place of what it saw before."""
        self._facts[key] = facts

    def failed(self, reason: str) -> None:
        """An attempt failed, of this cause."""
        self._failures.labels(reason).inc()

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._facts.pop(key, None)

    def queued(self, seconds: float) -> None:
        """The first pods of a job were created so long after it."""
        self._queue.observe(seconds)

    def scheduled(self, seconds: float) -> None:
        """All pods of an attempt got their nodes so long after they were created."""
        self._schedule.observe(seconds)

    def ready(self, seconds: float) -> None:
        """All pods of an attempt became ready so long after they were created."""
        self._ready.observe(seconds)

    def finished(self, result: str, seconds: float) -> None:
        """A job ended so long after its first pods; `result` is Succeeded or Failed."""
        self._duration.labels(result).observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """The families of which each job has its own series."""
        info = GaugeMetricFamily("rljob_info", "Jobs by phase", labels=["namespace", "rljob", "phase"])
        conditions = GaugeMetricFamily(
            "rljob_condition", "Conditions as they are now", labels=["namespace", "rljob", "type", "status"]
        )
        shown = self._shown()
        for key, facts in shown.items():
            info.add_metric([*key, facts.phase], 1)
            for type_, status in facts.conditions.items():
                conditions.add_metric([*key, type_, status], 1)
        yield info
        yield conditions
        yield self._ended_counts()
        yield from _numbers(shown)
        yield _restart_counts(shown)
        yield from _generator_counts(shown)

    def _shown(self) -> dict[Key, JobFacts]:
        since = self._clock() - _SHOWN_SECONDS
        return {
            key: facts
            for key, facts in self._facts.items()
            if facts.ended_timestamp_seconds is None or facts.ended_timestamp_seconds > since
        }

    def _ended_counts(self) -> Metric:
        family = GaugeMetricFamily("rljob_ended_jobs", "Jobs that have ended, by how", labels=["namespace", "phase"])
        ended = (fact for fact in self._facts.items() if fact[1].ended_timestamp_seconds is not None)
        for labels, count in CountOf((key.namespace, facts.phase) for key, facts in ended).items():
            family.add_metric(labels, count)
        return family


def _numbers(shown: Mapping[Key, JobFacts]) -> Iterator[Metric]:
    step = GaugeMetricFamily("rljob_step", "The last finished step", labels=["namespace", "rljob"])
    total = GaugeMetricFamily("rljob_total_steps", "Steps to do", labels=["namespace", "rljob"])
    progress = GaugeMetricFamily(
        "rljob_last_progress_timestamp_seconds", "When the step last grew", labels=["namespace", "rljob"]
    )
    for key, facts in shown.items():
        for family, value in (
            (step, facts.step),
            (total, facts.total_steps),
            (progress, facts.progress_timestamp_seconds),
        ):
            if value is not None:
                family.add_metric(key, value)
    yield from (step, total, progress)


def _restart_counts(shown: Mapping[Key, JobFacts]) -> Metric:
    labels = ["namespace", "rljob", "counted"]
    family = CounterMetricFamily("rljob_restarts", "Attempts that followed a failed one", labels=labels)
    for key, facts in shown.items():
        family.add_metric([*key, "true"], facts.counted_restarts)
        family.add_metric([*key, "false"], facts.restarts - facts.counted_restarts)
    return family


def _generator_counts(shown: Mapping[Key, JobFacts]) -> Iterator[Metric]:
    labels = ["namespace", "rljob"]
    wanted = GaugeMetricFamily("rljob_generators_wanted", "Pods that an elastic group is to have", labels=labels)
    ready = GaugeMetricFamily("rljob_generators_ready", "Pods of an elastic group that are ready", labels=labels)
    lost = CounterMetricFamily(
        "rljob_generators_lost", "Pods of an elastic group that ended before their attempt", labels=labels
    )
    for key, facts in shown.items():
        if facts.generators is not None:
            wanted.add_metric(key, facts.generators[0])
            ready.add_metric(key, facts.generators[1])
            lost.add_metric(key, facts.generators[2])
    yield from (wanted, ready, lost)


def _histogram(registry: CollectorRegistry, name: str, documentation: str, buckets: tuple[int, ...]) -> Histogram:
    return Histogram(name, documentation, buckets=buckets, registry=registry)


def facts_of(status: RLJobStatus) -> JobFacts:
    """What there is to say of the job now."""
    progress = status.progress
    return JobFacts(
        phase=status.phase,
        conditions={condition.type: condition.status for condition in status.conditions},
        step=progress.step if progress else None,
        total_steps=progress.total_steps if progress else None,
        progress_timestamp_seconds=(
            seconds_of(progress.last_step_time) if progress and progress.last_step_time else None
        ),
        restarts=status.restarts,
        counted_restarts=status.counted_restarts,
        ended_timestamp_seconds=seconds_of(status.completion_time) if status.completion_time else None,
        generators=_generators(status),
    )


def _generators(status: RLJobStatus) -> tuple[int, int, int] | None:
    if status.generator_selector is None:
        return None
    return status.generators_wanted, status.generators, status.generators_lost


def report_status(
    metrics: JobMetrics, key: Key, before: RLJobStatus, after: RLJobStatus, created: str, now: float
) -> None:
    """Show what the job is like, and count what happened between two writes of its status."""
    metrics.show(key, facts_of(after))
    if after.last_failure is not None and _is_given_up(before, after):
        metrics.failed(after.last_failure.cause)
    if after.pods_created_time and not before.pods_created_time and after.attempt == 1:
        metrics.queued(seconds_since(created, now))
    if is_true(after.conditions, "Scheduled") and not is_true(before.conditions, "Scheduled"):
        metrics.scheduled(_attempt_seconds(after, now))
    if after.ready_time and not before.ready_time:
        metrics.ready(_attempt_seconds(after, now))
    if after.completion_time and not before.completion_time:
        metrics.finished(after.phase, seconds_since(after.start_time, now))


def _is_given_up(before: RLJobStatus, after: RLJobStatus) -> bool:
    """Whether the attempt whose failure is noted has just ended by it; until then a worse cause may come to light."""
    ended_the_job = after.phase == "Failed" and before.phase != "Failed"
    is_of_this_attempt = after.last_failure is not None and after.last_failure.attempt == after.attempt
    return after.restarts > before.restarts or (ended_the_job and is_of_this_attempt)


def _attempt_seconds(status: RLJobStatus, now: float) -> float:
    return seconds_since(status.pods_created_time, now)
