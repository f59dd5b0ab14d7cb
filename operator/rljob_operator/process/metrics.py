"""The operator's own Prometheus metrics: reconciles, queue, watches, requests, leadership."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from rljob_operator.cluster.kinds import ResourceKind
from rljob_operator.reporting.job_metrics import JobMetrics

_RECONCILE_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Every family of the operator, in `registry`; `jobs` holds those of the jobs."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.jobs = JobMetrics(self.registry)
        self._reconcile_seconds = Histogram(
            "rljob_operator_reconcile_seconds",
            "Duration of a reconcile: Ok, Error (the cluster refused something) or Crash (a bug)",
            ["result"],
            buckets=_RECONCILE_BUCKETS,
            registry=self.registry,
        )
        self._queue_depth = self._gauge("rljob_operator_queue_depth", "Jobs that wait for a worker")
        self._queue_oldest = self._gauge(
            "rljob_operator_queue_oldest_seconds", "Age of the job that has waited or been worked on longest"
        )
        self._watch_last_event = self._gauge(
            "rljob_operator_watch_last_event_timestamp_seconds", "When a watch last said anything", "resource"
        )
        self._requests = Counter(
            "rljob_operator_api_requests",
            "Requests to the API server; code is error when there was no answer",
            ["verb", "code"],
            registry=self.registry,
        )
        self._missed_events = Counter(
            "rljob_operator_missed_events",
            "Changes of jobs that no watch event reported and that a resync found",
            registry=self.registry,
        )
        self._failures = Counter(
            "rljob_operator_part_failures",
            "Exceptions in a part of the operator that it outlived; the log names the job",
            ["part"],
            registry=self.registry,
        )
        self._leader = self._gauge("rljob_operator_leader", "1 in the replica that leads")
        self._loop_lag = self._gauge(
            "rljob_operator_loop_lag_seconds", "How late the event loop was at worst in the last half minute"
        )

    def reconciled(self, result: str, seconds: float) -> None:
        """A reconcile ended."""
        self._reconcile_seconds.labels(result).observe(seconds)

    def requested(self, verb: str, code: str) -> None:
        """A request was answered, or not."""
        self._requests.labels(verb, code).inc()

    def watched(self, kind: ResourceKind) -> None:
        """A watch, or the LIST before it, said something."""
        self._watch_last_event.labels(kind.plural).set(time.time())

    def missed(self, num_events: int) -> None:
        """A resync found changes that no event reported."""
        self._missed_events.inc(num_events)

    def begun(self, part: str) -> None:
        """A part of the operator runs: its exceptions count from zero, so that the first is an increase."""
        self._failures.labels(part)

    def failed(self, part: str) -> None:
        """A part of the operator met an exception, and went on."""
        self._failures.labels(part).inc()

    def led(self, leads: bool) -> None:
        """This replica began or ceased to lead."""
        self._leader.set(leads)

    def follow(
        self, queue_depth: Callable[[], float], queue_oldest: Callable[[], float], loop_lag: Callable[[], float]
    ) -> None:
        """Read these whenever Prometheus asks."""
        self._queue_depth.set_function(queue_depth)
        self._queue_oldest.set_function(queue_oldest)
        self._loop_lag.set_function(loop_lag)

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(name, documentation, labels, registry=self.registry)
