"""From characters to tokens: where in a response the steps of an answer end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rljob_worker.batch import Column

Decode = Callable[[np.ndarray], str]


def step_rewards(response_ids: Column, steps: Sequence[Sequence[tuple[int, float]]], decode: Decode) -> Column:
    """Float64, one value per response token: the rewards of the steps that end in it.

    steps: of each row, characters of its text up to the end of a step, and the step's reward. A step without a
    character ends in no token.
    """
    assert response_ids.offsets is not None
    values = np.zeros(int(response_ids.offsets[-1]))
    for row, of_row in enumerate(steps):
        ends = [end for end, _ in of_row]
        for token, (end, reward) in zip(tokens_at(response_ids.row(row), ends, decode), of_row, strict=True):
            if end:
                values[int(response_ids.offsets[row]) + token] += reward
    return Column(values, response_ids.offsets, "float64")


def tokens_at(ids: NDArray[np.int64], ends: Sequence[int], decode: Decode) -> list[int]:
    """Of each end, the first token with which the text has so many characters.

    "12" "-5" "=" "7\\n" with ends 3 and 6 -> 1, 3
    """
    if not ends or not len(ids):
        return [0] * len(ends)
    reach = np.cumsum(_characters(ids, decode))
    if reach[-1] == len(decode(ids)):
        return [int(token) for token in np.searchsorted(reach, ends)]
    # characters that several tokens make together: how far a text reaches is known of its beginnings alone
    return [bisect_left(range(len(ids) - 1), end, key=lambda last: len(decode(ids[: last + 1]))) for end in ends]


def _characters(ids: NDArray[np.int64], decode: Decode) -> NDArray[np.int64]:
    """Characters that each token adds after another one; the first may be written otherwise."""
    first = len(decode(ids[:1]))
    added = {token: len(decode(np.array([ids[0], token]))) - first for token in np.unique(ids[1:])}
    return np.array([first, *(added[token] for token in ids[1:])])
