"""Trajectories that failed: how many a step may have, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rljob_api.catalogue.columns import KEPT
from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.batch import Batch
from rljob_worker.batch.row_index import Int64
from rljob_worker.batch.trajectories import Trajectories
from rljob_worker.conversations.trajectory import Trajectory, failures
from rljob_worker.errors import BadData


def described_failures(trajectories: Sequence[Trajectory]) -> dict[str, tuple[int, str]]:
    """By cause, how many failed, and what is said of the first."""
    words = {item.failed: item.message for item in reversed(trajectories) if item.failed is not None}
    return {cause: (number, words[cause]) for cause, number in failures(trajectories).items()}


def failed_of_groups(batch: Batch, numbers: Int64, spec: RLJobSpec) -> Int64:
    """How many trajectories of each group failed, int64 [numbers]. batch: rows of groups with these numbers."""
    ends = Trajectories.of(batch.row_ids, spec).ends(batch)
    failed = ends.group_ids[ends[KEPT].values == 0]
    return np.bincount(np.searchsorted(numbers, failed), minlength=len(numbers)).astype(np.int64)


def require_few_failed(
    spec: RLJobSpec, step: int, num_failed: int, num_played: int, here: Mapping[str, tuple[int, str]]
) -> None:
    """Raises BadData where more trajectories of a step failed than `maxFailed` allows, with the causes on this rank."""
    assert spec.rollout.played is not None
    most, field = spec.rollout.played.max_failed, "conversation" if spec.rollout.conversation else "simulator"
    what = "conversations" if spec.rollout.conversation else "episodes"
    if num_failed <= most * num_played:
        return
    causes = "; ".join(f"{number} {cause} ({words})" for cause, (number, words) in sorted(here.items()))
    raise BadData(
        f"step {step}: {num_failed} of {num_played} {what} failed, and rollout.{field}.maxFailed is "
        f"{most}. On this worker: {causes or 'none; the logs of others name them'}. Correct what fails, or raise "
        "maxFailed"
    )
