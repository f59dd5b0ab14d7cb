"""The metrics edge and the verdict: how all ranks end a step with one opinion.

    every worker --report(step)--> lead --verdict(step)--> every worker

A report carries metrics, samples and whether the process was asked to stop; the verdict says whether to write a
checkpoint and whether this was the last step. The decision itself is `decide`, a pure function.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from rljob_api.v1alpha1 import CheckpointSpec, StopSpec
from rljob_api.vocabulary.keys import EDGE_METRICS, EDGE_VERDICT
from rljob_worker.batch import Batch, Column
from rljob_worker.scalars import Scalar, Scalars


class ControlBuffer(Protocol):
    """The part of the data buffer client that control uses."""

    def put(self, step: int, edge: str, batch: Batch, *, deadline_seconds: float) -> None: ...

    def get(self, step: int, edge: str, *, deadline_seconds: float) -> Batch: ...

    def release(self, batch: Batch) -> None: ...

    def send(self, version: int, edge: str, chunks: Iterable[Batch]) -> None: ...

    def receive(self, version: int, edge: str) -> Iterator[Batch]: ...


@dataclass(frozen=True, slots=True)
class Report:
    """What one worker says at the end of a step."""

    metrics: Scalars = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    stop_requested: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all workers do before the next step."""

    checkpoint: bool = False
    last: bool = False
    """No step follows; exit 0 unless `stopped`."""
    stopped: bool = False
    """The last step came early, on request: exit 76."""
    next_is_last: bool = False
    """A stop condition holds: one more step, with validation and checkpoint, ends the job."""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Opening:
    """What the lead tells every worker before the first step: where the job goes on."""

    step: int
    checkpoint: str | None


def decide(
    step: int,
    *,
    stop: StopSpec,
    checkpoint: CheckpointSpec,
    was_announced_last: bool,
    stop_requested: bool,
    reward: float | None,
    elapsed_seconds: float,
) -> Verdict:
    """The verdict on `step` (0 is the validation before the first)."""
    if step == stop.steps:
        return Verdict(checkpoint=True, last=True, cause=f"reached step {step}")
    if was_announced_last:
        return Verdict(checkpoint=True, last=True, cause="stop condition met")
    if stop_requested:
        return Verdict(checkpoint=step > 0, last=True, stopped=True, cause="asked to stop")
    due = step > 0 and checkpoint.every_steps > 0 and step % checkpoint.every_steps == 0
    if stop.reward_above is not None and reward is not None and reward > stop.reward_above:
        return Verdict(due, next_is_last=True, cause=f"reward {reward:.4g} is above {stop.reward_above:.4g}")
    if stop.active_seconds is not None and elapsed_seconds > stop.active_seconds:
        return Verdict(due, next_is_last=True, cause=f"active for {elapsed_seconds:.0f} s")
    return Verdict(due)


class Control:
    """One worker's end of the two edges."""

    def __init__(self, buffer: ControlBuffer, ordinal: int, deadline_seconds: float) -> None:
        self._buffer = buffer
        self._ordinal = np.array([ordinal], np.int64)
        self._deadline_seconds = deadline_seconds

    def report(self, step: int, report: Report) -> None:
        row = _row(self._ordinal, report_to_json(report))
        self._buffer.put(step, EDGE_METRICS, row, deadline_seconds=self._deadline_seconds)

    def collect(self, step: int) -> list[Report]:
        """The lead's: one report per worker, in worker order."""
        batch = self._buffer.get(step, EDGE_METRICS, deadline_seconds=self._deadline_seconds)
        reports = [report_from_json(text) for text in batch["json"].to_list()]
        self._buffer.release(batch)
        return reports

    def announce(self, version: int, message: Opening | Verdict) -> None:
        """The lead's: tell everyone. Version 0 is the opening, version s + 1 the verdict on step s."""
        row = _row(np.zeros(1, np.int64), json.dumps(asdict(message)))
        self._buffer.send(version, EDGE_VERDICT, [row])

    def await_opening(self) -> Opening:
        return Opening(**self._await(0))

    def await_verdict(self, step: int) -> Verdict:
        return Verdict(**self._await(step + 1))

    def _await(self, version: int) -> dict[str, Any]:
        messages = [batch["json"].row(0) for batch in self._buffer.receive(version, EDGE_VERDICT)]
        loaded: dict[str, Any] = json.loads(messages[0])
        return loaded


def report_to_json(report: Report) -> str:
    metrics = {name: [s.kind, s.sum, s.count, s.max] for name, s in report.metrics.items()}
    return json.dumps({"metrics": metrics, "samples": report.samples, "stopRequested": report.stop_requested})


def report_from_json(text: str) -> Report:
    raw = json.loads(text)
    metrics = {name: Scalar(*parts) for name, parts in raw["metrics"].items()}
    return Report(metrics, raw["samples"], raw["stopRequested"])


def _row(ordinal: np.ndarray, text: str) -> Batch:
    return Batch.build(ordinal, ordinal, {"json": Column.strings([text])})
