"""Optimizer steps in a row that were not taken: a few are bad luck, many are a job that no longer learns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rljob_worker.errors import BadData
from rljob_worker.metrics.scalars import Scalars, merge_all


@dataclass(frozen=True, slots=True)
class SkippedSteps:
    """How many there were lately. Every rank counts alike, since a step is skipped on all of them."""

    model: str
    limit: int
    """`training.maxSkippedSteps`."""
    in_a_row: int = 0

    def after(self, update: Scalars, step: int) -> SkippedSteps:
        """After one update, with its metrics. Raises BadData at the limit."""
        if update["update/skipped_total"].sum == 0.0:
            return replace(self, in_a_row=0)
        if self.in_a_row + 1 < self.limit:
            return replace(self, in_a_row=self.in_a_row + 1)
        raise BadData(
            f"step {step}: {self.limit} optimizer steps of {self.model} in a row were skipped, since the norm of their "
            "gradients was not a finite number; the logs of workers name the parameters; lower the learning rate, set "
            "training.precision: Float32, or raise training.maxSkippedSteps"
        )


def watched(updates: Iterable[Scalars], skipped: SkippedSteps, step: int) -> tuple[Scalars, SkippedSteps]:
    """The metrics of all updates of a step, and the count after them. Raises BadData as soon as it is at its limit."""
    found = []
    for update in updates:
        found.append(update)
        skipped = skipped.after(update, step)
    return merge_all(found), skipped


def skipped_state(skipped: SkippedSteps) -> dict[str, Any]:
    """What a checkpoint keeps."""
    return {"skipped_steps": skipped.in_a_row}


def with_skipped_state(skipped: SkippedSteps, state: Mapping[str, Any]) -> SkippedSteps:
    """As it stood at a checkpoint."""
    return replace(skipped, in_a_row=int(state.get("skipped_steps", 0)))
