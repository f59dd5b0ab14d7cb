"""What runs came to, and in which fields of their jobs they differ: rows to compare. Pure."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

WINDOW = 10
"""Steps averaged at either end of a run: single steps are noisy."""

FINAL_METRICS = ("reward/mean", "response_length/mean", "policy/entropy", "time/step_seconds")
"""Means of the last WINDOW steps that have them."""

LAST_METRICS = ("validation/accuracy", "validation/success")
"""Taken from the last validation."""


def final_figures(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """A run's figures at its end by metric, in the order in which they are listed above; those it has.

    >>> final_figures([{"step": 1, "reward/mean": 0.25, "validation/accuracy": 0.5}, {"step": 2, "reward/mean": 0.75}])
    {'reward/mean': 0.5, 'validation/accuracy': 0.5}
    """
    means = {name: deque[float](maxlen=WINDOW) for name in FINAL_METRICS}
    last = dict[str, float]()
    for record in records:
        for name, window in means.items():
            if isinstance(record.get(name), int | float):
                window.append(record[name])
        last |= {name: record[name] for name in LAST_METRICS if name in record}
    averaged = {name: fmean(window) for name, window in means.items() if window}
    order = ("reward/mean", *LAST_METRICS, *FINAL_METRICS)
    return {name: (averaged | last)[name] for name in order if name in averaged or name in last}


def differing(configs: Sequence[Mapping[str, str]]) -> list[str]:
    """Fields whose values differ between jobs, in the order in which they come up; one that a job lacks differs.
    configs: jobs as flat lists of fields."""
    names = dict.fromkeys(chain.from_iterable(configs))
    return [name for name in names if len({config.get(name) for config in configs}) > 1]
