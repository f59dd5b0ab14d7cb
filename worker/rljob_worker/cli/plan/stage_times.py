"""Seconds per stage as users write them, `--times rollout=60,update=30`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fractions import Fraction

from rljob_api.planning.costs.timeline import WEIGHT_SYNC, StageTimes
from rljob_api.planning.plan import Plan
from rljob_worker.errors import InvalidJob

MOST_SECONDS = 10**9
"""Thirty years."""


def parse_times(texts: Sequence[str], plan: Plan) -> StageTimes:
    """Times of the stages of a plan, from lists of NAME=SECONDS. `weights` is the weight sync, unless a stage has that
    name. Raises InvalidJob for names that the plan does not have, what is no number of seconds, and all of 0 s."""
    stages = [stage.name for stage in plan.stages]
    names = list(dict.fromkeys([*stages, WEIGHT_SYNC]))
    result = dict[str, Fraction]()
    for entry in (entry.strip() for text in texts for entry in text.split(",")):
        name, equals, seconds = (part.strip() for part in entry.partition("="))
        if not equals:
            raise InvalidJob(f"--times {entry}: write NAME=SECONDS, such as {stages[0]}=60")
        if name not in names:
            raise InvalidJob(f"--times {entry}: there is no stage {name}{_suggestion(name, names)}")
        if name in result:
            raise InvalidJob(f"--times {entry}: {name} has a time already; write it once")
        result[name] = _seconds(entry, seconds)
    if not any(result.get(name) for name in stages):
        raise InvalidJob(
            "--times: all stages take 0 s; give at least one of them a time above 0, as metrics.jsonl has it"
        )
    sync = result.pop(WEIGHT_SYNC, Fraction()) if WEIGHT_SYNC not in stages else Fraction()
    return StageTimes(result, sync)


def _seconds(entry: str, text: str) -> Fraction:
    """Exactly what is written. Raises InvalidJob."""
    try:
        seconds = float(text)
    except ValueError:
        raise InvalidJob(f"--times {entry}: {text or 'nothing'} is not a number; write seconds, such as 2.5") from None
    if not 0 <= seconds <= MOST_SECONDS:  # nor nan
        raise InvalidJob(f"--times {entry}: write seconds from 0 to {MOST_SECONDS:,}")
    return Fraction(repr(seconds))


def _suggestion(name: str, names: Sequence[str]) -> str:
    close = get_close_matches(name, names, 1)
    return (f"; did you mean {close[0]}?" if close else ";") + f" there are: {', '.join(names)}"
