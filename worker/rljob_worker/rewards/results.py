"""What was found of rows, and of which nothing was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rljob_worker.metrics.scalars import Scalar
from rljob_worker.rewards.combine import Rewards

Steps = Sequence[tuple[int, float]]
"""Rewards of a row's steps: characters of the response up to the end of each, and its reward."""


@dataclass(frozen=True, slots=True)
class Missed:
    """A row without an answer of a reward, which is 0 for it."""

    reward: str
    row: int
    """Position in the collected rows."""
    message: str
    kind: Literal["timeouts", "errors"] = "timeouts"


@dataclass(frozen=True, slots=True)
class RewardResult:
    """What was found of some rows."""

    rewards: Rewards
    """[rows, num_rewards], unweighted; 0 where a reward was missed."""
    total: Rewards
    """[rows], weighted sum over rewards."""
    metrics: dict[str, Scalar]
    missed: tuple[Missed, ...]
    answers: Mapping[int, str | None] = field(default_factory=dict)
    """What the first reward took for the answer of a row, by position; None where it found none or was missed. Rows of
    which it says nothing are not there."""
    steps: Mapping[int, Sequence[Steps]] = field(default_factory=dict)
    """Steps of each reward that is spread over steps, by its place: [rows]."""
