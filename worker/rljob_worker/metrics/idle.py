"""Idle time of a disaggregated job: names of its metrics, and a sentence that says who waited for what.

A job is disaggregated where a group generates and trains nothing, or trains and does not generate. Means over the
workers of groups that train (`trainers`), and over those of groups that only generate (`generators`):

    time/trainers_idle_seconds          per step, all causes
    time/trainers_idle_seconds/rows     per step, one cause
    time/trainers_idle_fraction         share of a worker's step
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

Role = Literal["trainers", "generators"]
ROLES: tuple[Role, ...] = ("trainers", "generators")
"""Workers of groups that train, and workers of groups that only generate."""

CAUSES = {
    "rows": "for rows",
    "verdict": "for verdicts",
    "room": "for room to put rows",
    "weights": "for weights",
    "weights_room": "for room to send weights",
}
"""What a worker waits for, in the words of a report."""

RECENT_STEPS = 20
"""Steps over which a report takes means, at most."""
NOTABLE_SHARE = 0.1
"""A cause with a smaller share of the idle seconds is left out of a report."""

Record = Mapping[str, Any]


def has_idle_seconds(record: Record) -> bool:
    """Whether a line of metrics.jsonl is a step of a disaggregated job."""
    return any(record.get(f"time/{role}_idle_seconds") is not None for role in ROLES)


def idle_sentence(records: Iterable[Record]) -> str:
    """Who waited for what, in means over the last RECENT_STEPS records with idle seconds; "" where none has any.

    trainers waited 0.31 s of 1.20 s per step for rows; generators 0.02 s for weights (mean of steps 41 to 60)
    """
    recent = deque(filter(has_idle_seconds, records), maxlen=RECENT_STEPS)
    parts = [text for role in ROLES if (text := _waits_of(role, recent))]
    if not parts:
        return ""
    return f"{'; '.join(parts)} ({steps_text(recent)})"


def steps_text(records: Sequence[Record]) -> str:
    """`mean of steps 41 to 60` of records by ascending step, `step 60` of a single one."""
    first, last = records[0]["step"], records[-1]["step"]
    return f"step {last}" if first == last else f"mean of steps {first} to {last}"


def _waits_of(role: Role, recent: Collection[Record]) -> str:
    """`trainers waited 0.31 s of 1.20 s per step for rows`; "" where the job has no such workers."""
    name = f"time/{role}_idle_seconds"
    seconds = mean_at(recent, name)
    if seconds is None:
        return ""
    step_seconds = [item for record in recent if (item := _worker_step_seconds(role, record)) is not None]
    of_step = f" of {fmean(step_seconds):.2f} s" if step_seconds else ""
    by_cause = {cause: mean_at(recent, f"{name}/{cause}") or 0.0 for cause in CAUSES}
    return f"{role} waited {seconds:.2f} s{of_step} per step{_causes(by_cause)}"


def _worker_step_seconds(role: Role, record: Record) -> float | None:
    """How long the step was for these workers, who may begin the first one long before the lead does."""
    seconds, fraction = record.get(f"time/{role}_idle_seconds"), record.get(f"time/{role}_idle_fraction")
    if seconds and fraction:
        return float(seconds / fraction)
    return record.get("time/step_seconds")


def _causes(by_cause: Mapping[str, float]) -> str:
    """` for rows` of a single notable cause, ` (0.20 s for rows, 0.11 s for weights)` of several, largest first."""
    least = NOTABLE_SHARE * sum(by_cause.values())
    notable = sorted((-seconds, cause) for cause, seconds in by_cause.items() if seconds >= max(least, 0.005))
    if len(notable) == 1:
        return f" {CAUSES[notable[0][1]]}"
    listed = ", ".join(f"{-negative:.2f} s {CAUSES[cause]}" for negative, cause in notable)
    return f" ({listed})" if listed else ""


def mean_at(records: Iterable[Record], name: str) -> float | None:
    """Over the records that have a number of this name; None where none has."""
    values = [record[name] for record in records if record.get(name) is not None]
    return fmean(values) if values else None
