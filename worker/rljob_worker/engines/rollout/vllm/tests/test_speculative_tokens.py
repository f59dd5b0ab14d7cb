"""Guesses against drawing one by one."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.engines.rollout.vllm.speculative_tokens import NONE, accepted_tokens, guessed_places


def test_samples_hold_up_to_the_first_that_was_not_guessed() -> None:
    """Rows with guesses 7 8 9, none, and 4."""
    rows, places = guessed_places(np.array([3, 0, 1]))
    assert rows.tolist() == [0, 0, 0, 0, 1, 2, 2] and places.tolist() == [0, 1, 2, 3, 0, 0, 1]
    result = accepted_tokens(
        torch.tensor([7, 8, 3, 5, 6, 4, 2]), torch.tensor([7, 8, 9, 4], dtype=torch.int32), np.array([3, 0, 1])
    )
    assert result.tolist() == [[7, 8, 3, NONE], [6, NONE, NONE, NONE], [4, 2, NONE, NONE]]


@given(st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=4), st.integers(0, 99))
def test_what_holds_is_what_would_be_drawn_one_by_one(guesses: list[list[int]], seed: int) -> None:
    """The next token of a row is a function of those before it."""

    def drawn(row: int, before: list[int]) -> int:
        return hash((seed, row, *before)) % 3

    samples = [drawn(row, guess[:at]) for row, guess in enumerate(guesses) for at in range(len(guess) + 1)]
    guessed = torch.tensor([token for guess in guesses for token in guess], dtype=torch.int32)
    result = accepted_tokens(torch.tensor(samples), guessed, np.array([len(guess) for guess in guesses]))
    for row, (tokens, guess) in enumerate(zip(result.tolist(), guesses, strict=True)):
        expected: list[int] = []
        while len(expected) <= len(guess) and expected == guess[: len(expected)]:
            expected.append(drawn(row, expected))
        assert tokens == expected + [NONE] * (len(tokens) - len(expected))
