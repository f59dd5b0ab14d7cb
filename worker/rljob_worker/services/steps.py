"""Steps of an answer and what becomes of their scores. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Step(NamedTuple):
    """A piece of a response."""

    text: str
    end: int
    """Characters of the response up to its end, the separator after it included."""


def steps_of(response: str, separator: str) -> list[Step]:
    """Pieces between separators, without those of white space alone; an answer of nothing is one empty step.

    "3*4=12\\n\\n12-5=7" with "\\n" -> [Step("3*4=12", 7), Step("12-5=7", 14)]
    """
    steps, start = list[Step](), 0
    for text in response.split(separator):
        end = start + len(text) + len(separator)
        if text.strip():
            steps.append(Step(text, min(end, len(response))))
        start = end
    return steps or [Step("", 0)]


def _mean(scores: Sequence[float]) -> float:
    return math.fsum(scores) / len(scores)


AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "Minimum": min,
    "Mean": _mean,
    "Product": math.prod,
    "Last": lambda scores: scores[-1],
    "Sum": math.fsum,
}
"""From the scores of an answer's steps, one or more between 0 and 1, to one; a sum may be above 1."""


def kept_pieces(head: Sequence[int], pieces: Sequence[Sequence[int]], max_tokens: int) -> tuple[list[int], list[int]]:
    """(tokens, ends): head and pieces one after the other, with the last `max_tokens` tokens kept; where each
    piece ends whose last token is kept.

    head [1, 2, 3], pieces [[4, 5], [6]], max_tokens 4 -> ([3, 4, 5, 6], [2, 3])
    """
    tokens, ends = list(head), []
    for piece in pieces:
        tokens += piece
        ends.append(len(tokens) - 1)
    dropped = max(0, len(tokens) - max_tokens)
    return tokens[dropped:], [end - dropped for end in ends if end >= dropped]
