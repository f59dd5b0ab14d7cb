"""Times as the API writes them: `2026-01-31T12:00:00Z`, whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(seconds: float) -> str:
    """Seconds since 1970 as text, rounded down."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(seconds: float) -> str:
    """As `timestamp`, with microseconds, which events want."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds_of(text: str) -> float:
    """Seconds since 1970; a ValueError for what is not a time."""
    return datetime.fromisoformat(text).timestamp()


def seconds_since(text: str | None, now: float) -> float:
    """How long ago that was; 0 where there is no time to count from, or one to come, as after a clock is put back."""
    return max(0.0, now - seconds_of(text)) if text else 0.0
