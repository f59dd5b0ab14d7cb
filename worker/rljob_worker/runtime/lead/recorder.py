"""The lead's books: one line of metrics per step, samples, and the progress that the pod serves."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from rljob_worker.algorithms.values.objective import with_explained_variance
from rljob_worker.metrics.by_policy import by_policy, labelled
from rljob_worker.metrics.headline import headline
from rljob_worker.metrics.health import HealthMonitor, line_of
from rljob_worker.metrics.report import StepReport, joined_samples, report_from_bytes, report_to_bytes
from rljob_worker.metrics.reporter import Reporter
from rljob_worker.metrics.scalars import Scalars
from rljob_worker.metrics.sink import RunFiles
from rljob_worker.storage.paths import StoragePath

log = logging.getLogger(__name__)

RECENT_STEPS = 20
"""Steps whose mean duration predicts how long the remaining ones will take."""

OF_ALL = ("reward/mean", "validation/accuracy")
"""What a job with several policies has as a mean over them, too: by these it stops and keeps checkpoints."""

_SHARE = "validation/success"
_SUCCESS = re.compile(rf"{_SHARE}(/.*)?")
"""Shares of episodes that succeeded, of all and of each task."""

_CLIP_FRACTIONS = ("policy/clip_fraction_low", "policy/clip_fraction_high")


class Recorder:
    """Writes down what all workers report."""

    def __init__(
        self,
        files: RunFiles,
        reporter: Reporter,
        *,
        total_steps: int,
        attempt: int,
        weights: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files, self._reporter, self._clock = files, reporter, clock
        self._started = clock()
        self._health = HealthMonitor(weights)
        self._progress_lock = threading.Lock()
        self._step_seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._progress: dict[str, Any] = {"totalSteps": total_steps, "attempt": attempt}

    def resume_from(self, step: int, active_seconds: float) -> None:
        """Drop what was written after `step`; go on counting the seconds of running."""
        self._files.cut_back(step)
        for record in self._files.steps():
            self._health.observe(record)
        self._started -= active_seconds
        self._progress |= {"step": step, "checkpointStep": step or None}

    @property
    def active_seconds(self) -> float:
        """Seconds of running, earlier attempts included."""
        return self._clock() - self._started

    def hold(self, step: int, report: StepReport) -> None:
        """Keep a step that is still to be validated where a later attempt looks for it."""
        self._files.hold_report(step, report_to_bytes(report, 0))

    def held(self, step: int) -> StepReport | None:
        """What an earlier attempt has kept so."""
        payload = self._files.held_report(step)
        return None if payload is None else report_from_bytes(payload)

    def record(self, step: int, report: StepReport) -> dict[str, float]:
        """Write one step; returns its metrics, those of nothing left out."""
        parts = {policy: _values(part) for policy, part in by_policy(report.metrics).items()}
        metrics = of_whole_job(parts.pop(None), list(parts.values()))
        for policy, part in parts.items():
            metrics |= labelled(part, policy)
        for warning in self._health.observe({"step": step, **metrics}):
            log.warning("%s", line_of(warning))
        self._files.write_step(step, metrics, joined_samples(report.samples))
        warnings = [f"{item.name}: {line_of(item)}" for item in self._health.present]
        progress = {"phase": "Running", "step": step, "warnings": warnings, **self._summary(metrics)}
        if "validation/accuracy" in metrics:
            progress["validation"] = metrics["validation/accuracy"]
        # what is slow is warned of, too: so the count is no metric of the job, which would repeat
        self._tell({**metrics, "health/warnings": float(len(warnings))}, progress)
        return metrics

    def _summary(self, metrics: dict[str, float]) -> dict[str, Any]:
        """What `/progress` reports of a step; `stepSeconds` is the mean of the recent ones."""
        if "time/step_seconds" in metrics:
            self._step_seconds.append(metrics["time/step_seconds"])
        chosen = headline(metrics)
        return {
            "reward": chosen.get("reward/mean"),
            "metrics": chosen,
            "stepSeconds": fmean(self._step_seconds) if self._step_seconds else None,
        }

    def committed(self, step: int, checkpoint: StoragePath) -> None:
        """Any thread may say so."""
        self._files.write_checkpoint(checkpoint)
        self._tell({}, {"checkpointStep": step})

    def _tell(self, metrics: dict[str, float], progress: dict[str, Any]) -> None:
        with self._progress_lock:
            self._progress |= progress
            self._reporter.send(metrics=metrics, progress=self._progress)

    def close(self) -> None:
        self._files.close()

    def fail(self) -> None:
        """The attempt ends by an error: trackers are notified, and nothing else is written. Raises nothing."""
        self._files.fail()


def _values(metrics: Scalars) -> dict[str, float]:
    """What one policy's metrics say, those that follow from others among them, and none of nothing."""
    values = {name: scalar.value for name, scalar in with_explained_variance(metrics).items()}
    values |= standard_errors(metrics)
    return derived({name: value for name, value in values.items() if not math.isnan(value)})


def standard_errors(metrics: Scalars) -> dict[str, float]:
    """How sure the shares of episodes that succeeded in validation are: sqrt(p (1 - p) / n)."""
    shares = {name: scalar for name, scalar in metrics.items() if scalar.count and _SUCCESS.fullmatch(name)}
    return {
        name.replace(_SHARE, f"{_SHARE}_standard_error", 1): math.sqrt(
            max(0.0, scalar.value * (1.0 - scalar.value)) / scalar.count
        )
        for name, scalar in shares.items()
    }


def derived(metrics: dict[str, float]) -> dict[str, float]:
    """Metrics that follow from others of the same policy: spread of the reward, clipped tokens."""
    out = dict(metrics)
    if "reward/square_mean" in out:
        variance = out.pop("reward/square_mean") - out["reward/mean"] ** 2
        out["reward/std"] = math.sqrt(max(variance, 0.0))
    clipped = [out[name] for name in _CLIP_FRACTIONS if name in out]
    if clipped:
        out["policy/clip_fraction"] = sum(clipped)  # a token's ratio leaves the trust region on one side at most
    return out


def of_whole_job(metrics: dict[str, float], policies: Sequence[dict[str, float]]) -> dict[str, float]:
    """Metrics of no policy alone: what all policies come to, tokens per second, bytes of all edges.

    policies: what each of several has; the metrics of the only one are among the job's.
    """
    out = dict(metrics)
    for name in OF_ALL:
        if result := [policy[name] for policy in policies if name in policy]:
            out[name] = fmean(result)
    if tokens := [policy["tokens/total"] for policy in policies if "tokens/total" in policy]:
        out["tokens/total"] = sum(tokens)
    if "tokens/total" in out and out.get("time/step_seconds"):
        out["throughput/tokens_per_second"] = out["tokens/total"] / out["time/step_seconds"]
    out["data/bytes_total"] = sum(value for name, value in out.items() if name.startswith("data/bytes_"))
    return out


def score_of(metrics: dict[str, float]) -> float | None:
    """What `keepBest` and `rewardAbove` look at: validation accuracy where the step has it, else the mean reward."""
    return metrics.get("validation/accuracy", metrics.get("reward/mean"))
