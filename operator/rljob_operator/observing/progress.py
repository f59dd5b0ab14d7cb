"""What a lead pod answers to `/progress`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_operator.observing.values import (
    MAX_MESSAGE_LENGTH,
    MAX_WORD_LENGTH,
    Unreadable,
    finite_number,
    mapping,
    parse_json,
    text_value,
    whole_number,
)
from rljob_operator.states.situation.facts import ProgressAnswer

MAX_ANSWER_BYTES = 1 << 20
_MAX_METRICS = 256
_MAX_WARNINGS = 16
_MAX_STEP_SECONDS = 1e9


def progress_of(body: bytes) -> ProgressAnswer:
    """The answer in `body`, numbers and texts within their bounds; what it says beyond our fields is passed over, so
    that a newer worker may say more.  Raises Unreadable."""
    said = parse_json(body)
    if not isinstance(said, dict):
        raise Unreadable("it is not an object")
    metrics = said.get("metrics")
    if metrics is not None and not isinstance(metrics, dict):
        raise Unreadable("metrics is not an object")
    step_seconds = finite_number(said.get("stepSeconds"))
    return ProgressAnswer(
        phase=text_value(said.get("phase")) or "Starting",
        attempt=_count(said, "attempt") or 0,
        step=_count(said, "step") or 0,
        total_steps=_count(said, "totalSteps") or 0,
        reward=finite_number(said.get("reward")),
        step_seconds=None if step_seconds is None else min(max(step_seconds, 0.0), _MAX_STEP_SECONDS),
        checkpoint_step=_count(said, "checkpointStep"),
        metrics=_metrics(mapping(metrics)),
        warnings=_warnings(said.get("warnings")),
    )


def _warnings(said: object) -> tuple[str, ...] | None:
    """None where the lead, of an earlier version, says nothing of them."""
    if not isinstance(said, list):
        return None
    texts = (text_value(item, MAX_MESSAGE_LENGTH) for item in said[:_MAX_WARNINGS])
    return tuple(text for text in texts if text)


def _count(said: Mapping[str, Any], name: str) -> int | None:
    value = said.get(name)
    result = whole_number(value)
    if result is None and value is not None:
        raise Unreadable(f"{name} is not a whole number")
    return result


def _metrics(said: Mapping[str, Any]) -> dict[str, float]:
    """A loss that is NaN is not a reason not to believe the rest."""
    result = (
        (text_value(name, MAX_WORD_LENGTH), finite_number(value)) for name, value in list(said.items())[:_MAX_METRICS]
    )
    return {name: value for name, value in result if name and value is not None}
