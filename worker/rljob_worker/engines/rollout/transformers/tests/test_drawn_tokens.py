"""Draws step by step, of rows that come, move and go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rljob_worker.engines.rollout.transformers.drawn_tokens import DrawnTokens
from rljob_worker.engines.rollout.transformers.request import NO_ROUTES, NOTHING, Drawn


def tokens_of(drawn: DrawnTokens) -> list[list[int]]:
    return [drawn.of(row).tokens.tolist() for row in range(len(drawn))]


def had(tokens: Sequence[int], log_probs: list[float], versions: list[int], routes: np.ndarray | None = None) -> Drawn:
    if routes is None:
        routes = np.empty((len(tokens), *NO_ROUTES.shape[1:]), np.uint8)
    return Drawn(np.array(tokens), np.array(log_probs), np.array(versions), routes)


def test_rows_come_with_what_they_have_and_move_with_what_they_got() -> None:
    drawn = DrawnTokens()
    drawn.append([NOTHING, had([5, 6], [-0.5, -0.25], [1, 1]), NOTHING])
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
    drawn.append([had(range(2000), [0.0] * 2000, [0] * 2000)])
    assert tokens_of(drawn) == [[], list(range(600)), list(range(2000))]


def test_routes_move_with_their_rows() -> None:
    # one layer of which each token has one expert; token t has expert t % 10
    def experts(tokens: Sequence[int]) -> np.ndarray:
        return (np.array(tokens, np.uint8) % 10).reshape(-1, 1, 1)

    drawn = DrawnTokens(np.empty((0, 1, 1), np.uint8))
    drawn.append([NOTHING, NOTHING, had([15, 26], [0, 0], [0, 0], experts([15, 26]))])
    drawn.add(np.array([0, 2]), np.array([7, 8]), np.zeros(2), 1, experts([7, 8]))
    drawn.keep(np.array([2, 1]))
    for token in range(300):
        drawn.add(np.array([1]), np.array([token % 97]), np.zeros(1), 1, experts([token % 97]))
    assert [len(drawn.of(row)) for row in range(2)] == [3, 300]
    for row in range(2):
        result = drawn.of(row)
        assert np.array_equal(result.routes, experts(result.tokens.tolist()))
