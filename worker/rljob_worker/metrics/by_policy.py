"""Metrics of a job with several policies: those of a policy begin with its name.

    reward/mean of the policy solver -> policy/solver/reward/mean

Times keep their names, and add up over policies as they do over models. In a job with one policy no name changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")

_LABELLED = re.compile(r"policy/([^/]+)/([^/]+/.+)")


def labelled(metrics: Mapping[str, Value], policy: str | None) -> dict[str, Value]:
    """Metrics of stages of one policy as the job names them; policy: None in a job with one."""
    if policy is None:
        return dict(metrics)
    return {name if name.startswith("time/") else f"policy/{policy}/{name}": value for name, value in metrics.items()}


def label_and_name(name: str) -> tuple[str | None, str]:
    """The policy of a metric, None for one of the whole job, and what the metric is called in a job with one policy."""
    match = _LABELLED.fullmatch(name)
    return (match[1], match[2]) if match else (None, name)


def by_policy(metrics: Mapping[str, Value]) -> dict[str | None, dict[str, Value]]:
    """Metrics of each policy under the names that they have in a job with one; under None those of the whole job."""
    parts: dict[str | None, dict[str, Value]] = {None: {}}
    for labelled_name, value in metrics.items():
        policy, name = label_and_name(labelled_name)
        parts.setdefault(policy, {})[name] = value
    return parts
