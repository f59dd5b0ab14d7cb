"""Numbers and warnings of steps as people read them. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rljob_api.vocabulary.quantity import format_bytes
from rljob_worker.metrics.health import HealthMonitor, line_of
from rljob_worker.metrics.idle import ROLES

MISSING = "–"

_MISSES = re.compile(r"reward/([^/]+)/(timeouts|errors|retries)_total")

_NONE = re.compile(r"reward/([^/]+)/none_fraction")

_WORDS = {"timeouts": "timed out", "errors": "failed", "retries": "called again"}


def format_number(value: float | None, digits: int = 3) -> str:
    """Significant digits without exponents for everyday sizes: 0.512, 0.00021, 12.3, 1.2e-07."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    text = f"{value:.{digits}g}"
    if "e" in text and 1e-5 <= abs(value) < 1e6:
        text = f"{value:.{digits + 4}f}".rstrip("0").rstrip(".") if abs(value) < 1 else f"{value:.0f}"
    return text


def share_of_episodes(record: Mapping[str, Any], task: str | None = None) -> str:
    """Success in a validation with its standard error, 0.75 ± 0.054: of all episodes, or of a task's."""
    suffix = "" if task is None else f"/{task}"
    share, error = (record.get(f"validation/{name}{suffix}") for name in ("success", "success_standard_error"))
    return MISSING if share is None else f"{format_number(share)} ± {format_number(error, 2)}"


def count(value: float | None) -> str:
    """Thousands as k: 950, 1.2k, 3.4M."""
    if value is None:
        return MISSING
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def size(value: float | None) -> str:
    """Bytes."""
    return MISSING if value is None else format_bytes(int(value))


def duration(seconds: float | None) -> str:
    """0.42s, 8.1s, 3m05s, 2h07m, 3d04h."""
    if seconds is None:
        return MISSING
    if seconds < 1:
        return f"{seconds:.2f}s"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02d}m"
    return f"{hours // 24}d{hours % 24:02d}h"


def idle_times(record: Mapping[str, Any]) -> str:
    """`trainers 0.31s, generators 0.02s` of a step of a disaggregated job; MISSING of any other."""
    seconds = {role: record.get(f"time/{role}_idle_seconds") for role in ROLES}
    return ", ".join(f"{role} {duration(value)}" for role, value in seconds.items() if value is not None) or MISSING


class StepWarnings:
    """What a person is warned of after each step: what rewards missed, and what keeps the policy from learning."""

    def __init__(self, weights: Mapping[str, float] | None = None, before: Iterable[Mapping[str, Any]] = ()) -> None:
        """weights: of the job's rewards, by name. before: steps of an earlier run that this one goes on from."""
        self._health = HealthMonitor(weights)
        for record in before:
            self._health.observe(record)

    def lines(self, record: Mapping[str, Any]) -> list[str]:
        """`warning: step 3: …`"""
        missed = [f"warning: step {record['step']}: {miss}" for miss in misses_of([record])]
        return [*missed, *(f"warning: {line_of(warning)}" for warning in self._health.observe(record))]


def misses_of(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each reward: `reward judge: 3 timed out, 1 failed, and count 0; 7 called again`, or
    `reward style: None for every row, which counts 0`."""
    counts: dict[str, Counter[str]] = {}
    nones: dict[str, float] = {}
    for record in records:
        for name, value in record.items():
            if (match := _MISSES.fullmatch(name)) and value:
                counts.setdefault(match[1], Counter())[match[2]] += int(value)
            elif match := _NONE.fullmatch(name):
                nones[match[1]] = min(value, nones.get(match[1], 1.0))
    silent = sorted(name for name, fraction in nones.items() if fraction == 1)
    missed = [f"reward {name}: {_counted(kinds)}" for name, kinds in sorted(counts.items())]
    return [*missed, *(f"reward {name}: None for every row, which counts 0" for name in silent)]


def _counted(kinds: Counter[str]) -> str:
    parts = [f"{kinds[kind]} {_WORDS[kind]}" for kind in ("timeouts", "errors") if kinds[kind]]
    lost = f"{', '.join(parts)}, and count 0" if parts else ""
    return "; ".join(filter(None, [lost, f"{kinds['retries']} {_WORDS['retries']}" if kinds["retries"] else ""]))
