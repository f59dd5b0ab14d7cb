"""Rewards that need nothing but the standard library.

Each takes the row and says 1.0 or 0.0, and the answer that it took from the response where it looks for one.
`row["reference"]` is the dataset column the job names under `column`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

_NUMBER = re.compile(r"[-+]?\$?\d[\d,]*(?:\.\d+)?|[-+]?\$?\.\d+")
MARK = "####"


Judgement = dict[str, float | str | list[list[float]] | None]
"""`reward`, and `answer`: None where the response gives none; or `step_rewards`."""


def exact_match(row: Mapping[str, Any], *, ignore_case: bool = False) -> Judgement:
    """1.0 when the response, without surrounding white space, is the reference."""
    response, reference = row["response"].strip(), row["reference"].strip()
    if ignore_case:
        response, reference = response.casefold(), reference.casefold()
    return {"reward": float(response == reference), "answer": response}


def final_number(row: Mapping[str, Any], *, needs_mark: bool = True) -> Judgement:
    """1.0 when the number after the response's last `####` equals the reference's final number (the GSM8K format).

    With `needs_mark=False` a response without the mark is judged by its last number.
    """
    response = row["response"]
    result = None if needs_mark and MARK not in response else number_of(response)
    if result is None:
        return {"reward": 0.0, "answer": None}
    return {"reward": float(result == number_of(row["reference"])), "answer": f"{result.normalize():f}"}


def environment_reward(row: Mapping[str, Any]) -> Judgement:
    """What the world of a conversation gave: the sum of `world.reward`. With `spread: Steps` each turn has its part at
    its last token."""
    reward = float(row["environment_reward"])
    return {"reward": reward, "step_rewards": [[len(row["response"]), reward]]}


def matches_format(row: Mapping[str, Any], *, pattern: str) -> float:
    """1.0 when the whole response matches the regular expression; `.` matches line ends too."""
    return float(_compiled(pattern).fullmatch(row["response"]) is not None)


def number_of(text: str) -> Decimal | None:
    """The first number after the last `####`, or without the mark the last number of the text.

    "so 6 * 7 = 42.\\n#### 1,042 apples" -> 1042        "it is 41, no, 42." -> 42
    """
    head, mark, tail = text.rpartition(MARK)
    numbers = _NUMBER.findall(tail if mark else text)
    if not numbers:
        return None
    return Decimal(numbers[0 if mark else -1].replace(",", "").replace("$", ""))


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)
