"""`ProgressAnswer`: what the lead pod says of how far its job is, and `Unreachable`, where it says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ProgressAnswer:
    """What `/progress` of the lead worker's pod says."""

    phase: str = "Starting"
    """Starting, Running or Finished."""

    attempt: int = 0
    """The attempt that answers."""

    step: int = 0
    """The last finished step."""

    total_steps: int = 0
    """stop.steps. 0: not said yet."""

    reward: float | None = None
    """Mean reward of the last step."""

    step_seconds: float | None = None
    """Mean duration of the recent steps."""

    checkpoint_step: int | None = None
    """Step of the last committed checkpoint."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the last step, by their names in metrics.jsonl."""


@dataclass(frozen=True)
class Unreachable:
    """The pod did not answer."""

    reason: str
    """Why, for a condition's message."""
