"""Draws step by step, of rows that come, move and go."""

from __future__ import annotations

import numpy as np

from rljob_worker.engines.rollout.transformers.drawn_tokens import DrawnTokens
from rljob_worker.engines.rollout.transformers.request import NOTHING, Drawn


def tokens_of(drawn: DrawnTokens) -> list[list[int]]:
    return [drawn.of(row).tokens.tolist() for row in range(len(drawn))]


def test_rows_come_with_what_they_have_and_move_with_what_they_got() -> None:
    drawn = DrawnTokens()
    drawn.append([NOTHING, Drawn(np.array([5, 6]), np.array([-0.5, -0.25]), np.array([1, 1])), NOTHING])
    drawn.add(np.array([0, 1]), np.array([7, 8]), np.array([-1.0, -2.0]), version=2)
    assert tokens_of(drawn) == [[7], [5, 6, 8], []]
    drawn.keep(np.array([2, 1]))
    drawn.append([NOTHING])
    drawn.add(np.array([0, 2]), np.array([3, 4]), np.zeros(2), version=3)
    assert tokens_of(drawn) == [[3], [5, 6, 8], [4]]
    assert drawn.of(1).log_probs.tolist() == [-0.5, -0.25, -2.0]
    assert drawn.of(1).versions.tolist() == [1, 1, 2] and drawn.of(0).versions.tolist() == [3]


def test_the_table_grows_with_its_longest_row() -> None:
    drawn = DrawnTokens()
    drawn.append([NOTHING, NOTHING])
    for token in range(600):
        drawn.add(np.array([1]), np.array([token]), np.zeros(1), version=0)
    drawn.append([Drawn(np.arange(2000), np.zeros(2000), np.zeros(2000))])
    assert tokens_of(drawn) == [[], list(range(600)), list(range(2000))]
