"""Tokens that were guessed ahead: which of those that are sampled after them hold.

Every guess is sampled where it stands, by the random number of its position; up to the first that differs from what was
guessed, samples are what would have been drawn one by one. A guess of probability p is right with probability p, as in
rejection sampling (Leviathan et al. 2023, https://arxiv.org/abs/2211.17192) of guesses that are certain.

    guessed   7 8 9          sampled   7 8 3 5     holds 7 8 3: 3 is drawn after 7 8, and 5 after 9, which did not come
"""

from __future__ import annotations

import numpy as np
import torch

from rljob_worker.batch import Indices

NONE = -1
"""In the place of a token that does not hold."""


def guessed_places(num_guessed: Indices) -> tuple[Indices, Indices]:
    """The row, and the place in it, of each token that is sampled: one more than was guessed of each row, rows one
    after another."""
    counts = num_guessed + 1
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)


def accepted_tokens(sampled: torch.Tensor, guessed: torch.Tensor, num_guessed: Indices) -> torch.Tensor:
    """int64 [rows, most guesses + 1], the sampled tokens that hold, then NONE.

    sampled: [samples] as in `guessed_places`. guessed: [guesses], rows one after another.
    """
    rows, places = (torch.from_numpy(guessed_place).to(sampled.device) for guessed_place in guessed_places(num_guessed))
    shape = (len(num_guessed), int(num_guessed.max()) + 1)
    tokens, guesses = torch.full(shape, NONE, device=sampled.device), torch.full(shape, NONE, device=sampled.device)
    tokens[rows, places] = sampled
    is_guess = places < torch.from_numpy(num_guessed).to(sampled.device)[rows]
    guesses[rows[is_guess], places[is_guess]] = guessed.to(guesses.dtype)
    is_right = (tokens == guesses)[:, :-1].cumprod(1).bool()
    follows = torch.cat([torch.ones_like(tokens[:, :1], dtype=torch.bool), is_right], 1)
    return torch.where(follows, tokens, NONE)
