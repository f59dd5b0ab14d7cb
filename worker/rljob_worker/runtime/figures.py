"""A worker's figures of a step: where its time goes, what it moved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rljob_worker.metrics.by_policy import labelled
from rljob_worker.metrics.report import StepReport
from rljob_worker.metrics.scalars import Scalars, mean, merge_all, total

PRODUCTIVE = (
    "time/generation_seconds",
    "time/forward_seconds",
    "time/backward_seconds",
    "time/optimizer_seconds",
    "time/collectives_seconds",
)
"""Generation, forward, backward, optimizer and collectives. The rest of a step is data plane, waiting and Python."""


class Watcher(Protocol):
    """Is notified of every block of a step when it ends, inner ones first."""

    def __call__(self, name: str, started: float, ended: float, facts: Mapping[str, float]) -> None:
        """started, ended: readings of the figures' clock. facts: what else is known of the block."""


class StepFigures:
    """What a worker gathers between two reports. A step lasts from one report to the next."""

    watcher: Watcher | None = None

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started = clock()
        self._metrics: list[Scalars] = []
        self._samples: list[dict[str, Any]] = []

    def now(self) -> float:
        """The clock by which blocks are measured."""
        return self._clock()

    def begin(self) -> None:
        """The first step begins now; what was measured before, and not reported, is part of no step."""
        self._started = self._clock()
        self._metrics, self._samples = [], []

    def add(self, metrics: Scalars, samples: Sequence[dict[str, Any]] = (), policy: str | None = None) -> None:
        """policy: whose they are, in a job with several."""
        self.add_report(report_of(metrics, samples, policy))

    def add_report(self, report: StepReport) -> None:
        """What was gathered elsewhere."""
        self._metrics.append(report.metrics)
        self._samples.extend(report.samples)

    @contextmanager
    def watched(self, name: str) -> Iterator[dict[str, float]]:
        """A named block, for those that watch the run; it may leave facts about itself."""
        facts: dict[str, float] = {}
        started = self._clock()
        yield facts
        if self.watcher is not None:
            self.watcher(name, started, self._clock(), facts)

    @contextmanager
    def timed(self, name: str) -> Iterator[dict[str, float]]:
        """A watched block whose seconds are added as `time/{name}_seconds`."""
        started = self._clock()
        with self.watched(name) as facts:
            yield facts
        self.add({f"time/{name}_seconds": mean(self._clock() - started)})

    @contextmanager
    def outside_of_steps(self) -> Iterator[None]:
        """Time that no step is charged with."""
        started = self._clock()
        yield
        self._started += self._clock() - started

    def take(self, *, is_step: bool) -> StepReport:
        """Everything since the last report. What is not a step, the validation before the first, has no length."""
        metrics = add_up_times(merge_all(self._metrics))
        if is_step:
            now = self._clock()
            seconds, self._started = now - self._started, now
            metrics["time/step_seconds"] = mean(seconds)
            metrics["time/overhead_fraction"] = mean(max(0.0, 1.0 - productive_seconds(metrics) / seconds))
        report = StepReport(metrics, self._samples)
        self._metrics, self._samples = [], []
        return report


def report_of(metrics: Scalars, samples: Sequence[dict[str, Any]], policy: str | None) -> StepReport:
    """policy: whose they are, in a job with several."""
    labels = {} if policy is None else {"policy": policy}
    return StepReport(labelled(metrics, policy), [{**labels, **sample} for sample in samples])


def merged(one: StepReport, other: StepReport) -> StepReport:
    """What one worker says in two parts."""
    return StepReport(merge_all([one.metrics, other.metrics]), [*one.samples, *other.samples])


def productive_seconds(metrics: Scalars) -> float:
    """Seconds of one worker's step spent in `PRODUCTIVE`; each adds up over the calls of the step."""
    return sum(metrics[name].sum for name in PRODUCTIVE if name in metrics)


def add_up_times(metrics: Scalars) -> Scalars:
    """One worker's times of a step: calls of one name add up, so that a mean over workers is seconds per step."""
    return {
        name: mean(scalar.sum) if name.startswith("time/") and scalar.kind == "mean" else scalar
        for name, scalar in metrics.items()
    }


def times_of(metrics: Scalars) -> dict[str, float]:
    """`forward: 1.5` for `time/forward_seconds`, whose calls add up."""
    return {
        name.removeprefix("time/").removesuffix("_seconds"): scalar.sum
        for name, scalar in metrics.items()
        if name.startswith("time/")
    }


def data_metrics(figures: Mapping[str, float]) -> Scalars:
    """The client's `figure/edge`: what was put as `data/bytes_<edge>`, the rest as `data/<figure>/<edge>`."""
    metrics: Scalars = {}
    for name, value in figures.items():
        figure, _, edge = name.partition("/")
        if figure == "put_bytes":
            metrics[f"data/bytes_{edge}"] = total(value)
        else:
            metrics[f"data/{figure}/{edge}"] = mean(value) if figure.endswith("_seconds") else total(value)
    return metrics
