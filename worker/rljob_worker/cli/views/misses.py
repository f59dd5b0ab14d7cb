"""Rewards that gave no answer, in words. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

_MISSES = re.compile(r"reward/([^/]+)/(timeouts|errors|retries)_total")
_NONE = re.compile(r"reward/([^/]+)/none_fraction")
_WORDS = {"timeouts": "timed out", "errors": "failed", "retries": "called again"}


def misses_of(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each reward: `reward judge: 3 timed out, 1 failed, and count 0; 7 called again`, or
    `reward style: None for every row, which counts 0`."""
    counts: dict[str, Counter[str]] = {}
    nones: dict[str, float] = {}
    for record in records:
        for name, value in record.items():
            if (found := _MISSES.fullmatch(name)) and value:
                counts.setdefault(found[1], Counter())[found[2]] += int(value)
            elif found := _NONE.fullmatch(name):
                nones[found[1]] = min(value, nones.get(found[1], 1.0))
    silent = sorted(name for name, fraction in nones.items() if fraction == 1)
    missed = [f"reward {name}: {_counted(kinds)}" for name, kinds in sorted(counts.items())]
    return [*missed, *(f"reward {name}: None for every row, which counts 0" for name in silent)]


def _counted(kinds: Counter[str]) -> str:
    parts = [f"{kinds[kind]} {_WORDS[kind]}" for kind in ("timeouts", "errors") if kinds[kind]]
    lost = f"{', '.join(parts)}, and count 0" if parts else ""
    return "; ".join(filter(None, [lost, f"{kinds['retries']} {_WORDS['retries']}" if kinds["retries"] else ""]))
