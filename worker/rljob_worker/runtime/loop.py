"""The step loop of one worker: take, run, hand on; then sync weights, validate, report, obey the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from rljob_api.planning.plan import StagePlan
from rljob_worker.runtime.control import Control, Opening, Report, Verdict
from rljob_worker.runtime.figures import add_up_times, productive_seconds
from rljob_worker.runtime.handover import Handover
from rljob_worker.runtime.lead import Lead
from rljob_worker.runtime.validation import Validation, is_due
from rljob_worker.runtime.weight_sync import WeightSync
from rljob_worker.scalars import Scalars, mean, merge_all
from rljob_worker.stages.stage import Stage, StageContext


class Saver(Protocol):
    """Writes this rank's part of a checkpoint."""

    def __call__(self, step: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What the loop drives; built once by `worker.py`."""

    schedule: tuple[tuple[StagePlan, Stage], ...]
    context: Callable[[StagePlan, int], StageContext]
    handover: Handover
    weights: WeightSync
    control: Control
    save: Saver
    validation: Validation | None
    validates: bool
    """Whether the job has validation data at all; ranks that do not generate only wait for the verdict."""
    lead: Lead | None
    statistics: Callable[[], Scalars]
    stop_requested: Callable[[], bool]
    show: Callable[[Scalars], None]
    """Puts this worker's own metrics on its pod's metrics port."""
    post: Callable[[dict[str, Any]], None]
    """Tells the own sidecar what this worker is doing, for whoever waits for it."""
    policy_version: Callable[[int], int]
    """The version of the policy after a step: an earlier one's where the step leaves the policy as it is."""
    total_steps: int
    validate_every: int


@dataclass
class Loop:
    """Runs steps until a verdict says stop."""

    parts: Parts
    announced_last: bool = False
    metrics: list[Scalars] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    step_started: float = 0.0
    """A step lasts from one report to the next: nothing but validation and checkpoints is outside every step."""

    def run(self, opening: Opening) -> tuple[int, Verdict]:
        """Returns the last trained step and the verdict that ended the loop."""
        step, verdict = opening.step, Verdict(last=opening.step >= self.parts.total_steps, cause="already finished")
        if verdict.last:
            return step, verdict
        self.metrics.append(self.parts.weights.sync(self.parts.policy_version(step)))
        if self.parts.validates and is_due(0, every_steps=0, is_last=False, first_step=step):
            verdict = self.end_step(0)
        self.step_started = time.perf_counter()
        while not verdict.last:
            step += 1
            self.run_step(step)
            verdict = self.end_step(step)
        return step, verdict

    def run_step(self, step: int) -> None:
        """Every stage of the schedule once, then the new weights to whoever samples with them."""
        for plan, stage in self.parts.schedule:
            self.parts.post({"stage": plan.name, "step": step, "state": "waiting"})
            batch = self.parts.handover.take(plan, step)
            self.parts.post({"stage": plan.name, "step": step, "state": "running"})
            started = time.perf_counter()
            result = stage.run(batch, self.parts.context(plan, step))
            self.metrics.append({f"time/{plan.name}_seconds": mean(time.perf_counter() - started), **result.metrics})
            self.samples.extend(result.samples)
            self.parts.handover.give(plan, step, result.batch)
        if self.parts.policy_version(step) == step:
            self.metrics.append(self.parts.weights.sync(step))
        self.metrics.append(self.parts.handover.end_step())

    def end_step(self, step: int) -> Verdict:
        """Validate, report, and act on the verdict."""
        is_last = self.announced_last or step == self.parts.total_steps
        due = is_due(step, every_steps=self.parts.validate_every, is_last=is_last, first_step=0)
        if due and self.parts.validation is not None:
            with self.outside_of_steps():
                metrics, samples = self.parts.validation.run()
            self.metrics.append(metrics)
            self.samples.extend(samples)
        report = self.take_report(step)
        started = time.perf_counter()
        self.parts.post({"stage": "report", "step": step, "state": "running"})
        self.parts.control.report(step, report)
        self.parts.show(report.metrics)
        verdict = self.verdict(step)
        self.announced_last = verdict.next_is_last
        self.metrics.append({"time/control_seconds": mean(time.perf_counter() - started)})
        if verdict.checkpoint:
            self.checkpoint(step)
        return verdict

    def take_report(self, step: int) -> Report:
        """This worker's metrics and samples of the step. Step 0 trains nothing and has no length."""
        metrics = add_up_times(merge_all([*self.metrics, self.parts.statistics()]))
        if step > 0:
            now = time.perf_counter()
            seconds, self.step_started = now - self.step_started, now
            metrics["time/step_seconds"] = mean(seconds)
            metrics["time/overhead_fraction"] = mean(max(0.0, 1.0 - productive_seconds(metrics) / seconds))
        report = Report(metrics, list(self.samples), self.parts.stop_requested())
        self.metrics.clear()
        self.samples.clear()
        return report

    def verdict(self, step: int) -> Verdict:
        if self.parts.lead is None:
            return self.parts.control.await_verdict(step)
        return self.parts.lead.judge(step, was_announced_last=self.announced_last)

    def checkpoint(self, step: int) -> None:
        started = time.perf_counter()
        self.parts.post({"stage": "checkpoint", "step": step, "state": "running"})
        with self.outside_of_steps():
            self.parts.save(step)
            if self.parts.lead is not None:
                self.parts.lead.commit(step)
        self.metrics.append({"time/checkpoint_seconds": mean(time.perf_counter() - started)})

    @contextmanager
    def outside_of_steps(self) -> Iterator[None]:
        """Time that no step is charged with."""
        started = time.perf_counter()
        yield
        self.step_started += time.perf_counter() - started
