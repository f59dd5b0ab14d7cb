"""A worker's figures of a step: where its time goes, what it moved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rljob_api.planning.plan import Plan
from rljob_worker.metrics.by_policy import labelled
from rljob_worker.metrics.idle import CAUSES, Role
from rljob_worker.metrics.report import StepReport
from rljob_worker.metrics.scalars import Scalars, maximum, mean, merge_all, total

PRODUCTIVE = (
    "time/generation_seconds",
    "time/forward_seconds",
    "time/backward_seconds",
    "time/optimizer_seconds",
    "time/collectives_seconds",
)
"""Generation, forward, backward, optimizer and collectives. The rest of a step is data plane, waiting and Python."""

ROOM = "data/room_seconds/"
"""Begins the names of waits for room to put rows, which only disaggregated jobs report."""


class Watcher(Protocol):
    """Is notified of every block of a step when it ends, inner ones first."""

    def __call__(self, name: str, started: float, ended: float, facts: Mapping[str, float]) -> None:
        """started, ended: readings of the figures' clock. facts: what else is known of the block."""


class StepFigures:
    """What a worker gathers between two reports. A step lasts from one report to the next."""

    watcher: Watcher | None = None

    def __init__(self, clock: Callable[[], float] = time.perf_counter, role: Role | None = None) -> None:
        """role: under which this worker reports its idle seconds; None in a job that is not disaggregated."""
        self._clock, self.role = clock, role
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
            if self.role is not None:
                metrics |= idle_metrics(self.role, metrics, seconds)
        if self.role is None:
            metrics = {name: scalar for name, scalar in metrics.items() if not name.startswith(ROOM)}
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


def idle_role(plan: Plan, group: str) -> Role | None:
    """What workers of a group report their idle seconds as. None where every group that trains generates, too, and the
    other way round, and in a group that does neither."""
    if all(plan.trains(item.name) == plan.generates(item.name) for item in plan.gang):
        return None
    if plan.trains(group):
        return "trainers"
    return "generators" if plan.generates(group) else None


def idle_metrics(role: Role, metrics: Scalars, step_seconds: float) -> Scalars:
    """One worker's idle seconds of a step and their share of it. metrics: what it reports of the step, with times added
    up."""
    by_cause = idle_seconds(metrics)
    seconds, name = sum(by_cause.values()), f"time/{role}_idle"
    parts = {f"{name}_seconds/{cause}": mean(part) for cause, part in by_cause.items()}
    return {f"{name}_seconds": mean(seconds), f"{name}_fraction": mean(seconds / step_seconds), **parts}


def idle_seconds(metrics: Scalars) -> dict[str, float]:
    """Seconds in which one worker did nothing but wait, by cause. Each of its waits is part of one name."""
    result = dict.fromkeys(CAUSES, 0.0)
    for name, scalar in metrics.items():
        cause = _cause_of_wait(name)
        if cause is not None:
            result[cause] += scalar.sum
    return result


def _cause_of_wait(name: str) -> str | None:
    """What a metric has the seconds of waiting for; None where it is something else, or part of no step."""
    if name.startswith(ROOM):
        return "room"
    if not (name.startswith("time/") and name.endswith("_wait_seconds")):
        return None
    what = name.removeprefix("time/").removesuffix("_wait_seconds")
    if what == "checkpoint":
        return None
    return what if what in ("verdict", "weights", "weights_room") else "rows"


def groups_in_flight(step: int, trained: int, batch_size: int) -> Scalars:
    """Groups of rows that are drawn and not known to be trained on, once a generating worker has drawn those of `step`.

    trained: the newest training step whose weights it has waited for. batch_size: groups of a step.
    """
    return {"rollout/groups_in_flight": maximum((step - trained) * batch_size)}


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
