"""`ProgressAnswer`: what the lead pod says of how far its job is, and `Unreachable`, where it says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, Field, field_validator

from rljob_api.vocabulary.model import ApiModel


class ProgressAnswer(ApiModel):
    """What `/progress` of the lead worker's pod says; fields that are not listed here are passed over, so that a newer
    worker may say more."""

    model_config = ConfigDict(extra="ignore", strict=False)

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

    metrics: dict[str, float] = Field(default_factory=dict)
    """Metrics of the last step, by their names in metrics.jsonl."""

    @field_validator("metrics", mode="before")
    @classmethod
    def _leave_out_what_is_no_number(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: number for name, number in value.items() if number is not None}


@dataclass(frozen=True)
class Unreachable:
    """The pod did not answer."""

    reason: str
    """Why, for a condition's message."""
