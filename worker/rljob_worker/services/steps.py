"""Steps of an answer and what becomes of their scores. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence


def steps_of(response: str, separator: str) -> list[str]:
    """Pieces between separators, without those of white space alone; an answer of nothing is one empty step.

    "3*4=12\\n\\n12-5=7" with "\\n" -> ["3*4=12", "12-5=7"]
    """
    return [step for step in response.split(separator) if step.strip()] or [""]


def _product(scores: Sequence[float]) -> float:
    return math.prod(scores)


def _mean(scores: Sequence[float]) -> float:
    return math.fsum(scores) / len(scores)


AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "Minimum": min,
    "Mean": _mean,
    "Product": _product,
    "Last": lambda scores: scores[-1],
}
"""From the scores of an answer's steps, one or more between 0 and 1, to one."""


def kept_pieces(head: Sequence[int], pieces: Sequence[Sequence[int]], max_tokens: int) -> tuple[list[int], list[int]]:
    """(tokens, ends): head and pieces one after the other, of which the last `max_tokens` tokens are kept; where each
    piece ends whose last token is kept.

    head [1, 2, 3], pieces [[4, 5], [6]], max_tokens 4 -> ([3, 4, 5, 6], [2, 3])
    """
    tokens, ends = list(head), []
    for piece in pieces:
        tokens += piece
        ends.append(len(tokens) - 1)
    dropped = max(0, len(tokens) - max_tokens)
    return tokens[dropped:], [end - dropped for end in ends if end >= dropped]
