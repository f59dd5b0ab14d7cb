"""From what a judge said to a reward. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_NUMBER = re.compile(r"\s*:?\s*([-+]?\d+(?:\.\d+)?|[-+]?\.\d+)(?!\.?\d)")


def number_after(text: str, mark: str) -> float | None:
    """The number right after the last mark; None without a mark, or where no number follows it.

    "2 of 3 steps hold. #### 0.5" -> 0.5        "#### 7/10" -> 7.0        "#### good" -> None
    """
    _, result, after = text.rpartition(mark)
    match = _NUMBER.match(after) if result else None
    return None if match is None else float(match[1])


def verdict(text: str, mark: str, lowest: float, highest: float) -> float | None:
    """What a judge's answer is worth, between 0 and 1; None for an answer without a number within the bounds.

    A number outside of them is not moved to the nearest: a judge that says 11 of 10 has not understood the question.
    """
    number = number_after(text, mark)
    if number is None or not math.isfinite(number) or not lowest <= number <= highest:
        return None
    return (number - lowest) / (highest - lowest)


def reward_of_votes(votes: Sequence[float | None], unparsed: float) -> dict[str, float]:
    """The reward of a row, and what its votes were: `unparsed`, the share of those without a number; `disagreement`,
    the standard deviation of the others.

    [1.0, 0.0, None] -> reward 0.5, unparsed 1/3, disagreement 0.5
    """
    result = [vote for vote in votes if vote is not None]
    missing = 1 - len(result) / len(votes)
    if not result:
        return {"reward": unparsed, "unparsed": missing}
    mean = math.fsum(result) / len(result)
    spread = math.sqrt(math.fsum((vote - mean) ** 2 for vote in result) / len(result))
    return {"reward": mean, "unparsed": missing, "disagreement": spread}
