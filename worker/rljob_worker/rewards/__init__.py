"""Rewards: the user's functions and the shipped ones, run in processes of their own.

A reward is `def name(row, **options) -> float | dict`, plain or `async`; a dict has `reward`, and may have figures and
`answer`. A job names it as `module:function`:

    rewards:
      - {name: correct, run: rljob_worker.rewards:math_answer, column: answer}

Names are imported when first used: a reward process pays neither for numpy nor for sympy unless a reward needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rljob_worker.rewards.functions import environment_reward, exact_match, final_number, matches_format
    from rljob_worker.rewards.mathematics import math_answer
    from rljob_worker.rewards.results import Missed, RewardResult
    from rljob_worker.rewards.running.runner import RewardRunner
    from rljob_worker.rewards.service import served

__all__ = [
    "RewardResult",
    "RewardRunner",
    "Missed",
    "environment_reward",
    "exact_match",
    "final_number",
    "matches_format",
    "math_answer",
    "served",
]

_HOMES = {
    "environment_reward": "functions",
    "exact_match": "functions",
    "final_number": "functions",
    "matches_format": "functions",
    "math_answer": "mathematics",
    "served": "service",
    "RewardRunner": "running.runner",
    "RewardResult": "results",
    "Missed": "results",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
