"""Draws: where they come from, and what top-p and top-k leave."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.rollout.sampling import draw_numbers, invert_cdf, keep_likely, sample, sample_each, uniforms
from rljob_worker.random_bits import random_streams


def draws_of(seed: int, row_ids: np.ndarray, turns: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return uniforms(random_streams(seed, row_ids), draw_numbers(turns, positions))


def test_uniforms_are_even_and_depend_on_all_four_numbers() -> None:
    rows, positions = np.divmod(np.arange(40_000), 200)
    turns = np.zeros_like(rows)
    draws = draws_of(7, rows, turns, positions)
    assert draws.min() >= 0 and draws.max() < 1
    counts = np.histogram(draws, bins=10, range=(0, 1))[0]
    # 4000 expected in each of ten bins, standard deviation 60
    assert np.abs(counts - 4000).max() < 300
    assert len(np.unique(draws)) > 39_000
    assert not np.array_equal(draws, draws_of(8, rows, turns, positions))
    later = draws_of(7, rows, turns + 1, positions)
    assert abs(np.corrcoef(draws, later)[0, 1]) < 0.03
    # neighbours in either direction are unrelated: the correlation of 39800 pairs has deviation 0.005
    grid = draws.reshape(200, 200)
    for left, right in ((grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:])):
        assert abs(np.corrcoef(left.reshape(-1), right.reshape(-1))[0, 1]) < 0.03


def test_no_turn_of_a_conversation_repeats_draws_of_another() -> None:
    """Draw p of turn t is not draw p + t of the first turn."""
    turns, positions = np.divmod(np.arange(4 * 50), 50)
    draws = draws_of(7, np.zeros_like(turns), turns, positions)
    assert len(np.unique(draws)) == 200


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=5), st.integers(0, 2**31 - 1))
def test_a_rows_draw_does_not_depend_on_its_company(rows: list[int], seed: int) -> None:
    ids = np.array(rows, np.int64)
    together = draws_of(seed, ids, np.zeros_like(ids), np.zeros_like(ids))
    alone = [
        draws_of(seed, ids[at : at + 1], np.zeros(1, np.int64), np.zeros(1, np.int64))[0] for at in range(len(ids))
    ]
    assert together.tolist() == alone


def test_invert_cdf_never_draws_a_token_of_probability_zero() -> None:
    # cumulative 0.5 0.5 1.0 1.0: a draw of exactly 0.5 is past the first and the empty second
    probabilities = torch.tensor([[0.5, 0.0, 0.5, 0.0]]).repeat(4, 1)
    draws = torch.tensor([0.0, 0.49, 0.5, 1 - 2.0**-24])
    assert invert_cdf(probabilities, draws).tolist() == [0, 0, 2, 2]


def test_what_is_not_finite_gives_some_token() -> None:
    tokens = invert_cdf(torch.full((1, 3), torch.nan), torch.tensor([0.5]))
    assert 0 <= int(tokens) < 3


def test_top_k_then_top_p() -> None:
    probabilities = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    assert keep_likely(probabilities, 1.0, 2).tolist() == torch.tensor([[0.0, 0.4, 0.0, 0.3]]).tolist()
    # 0.4 + 0.3 = 0.7 is the smallest sum that reaches 0.65
    assert keep_likely(probabilities, 0.65, 0).tolist() == torch.tensor([[0.0, 0.4, 0.0, 0.3]]).tolist()
    assert keep_likely(probabilities, 0.01, 0).tolist() == torch.tensor([[0.0, 0.4, 0.0, 0.0]]).tolist()
    assert keep_likely(probabilities, 1.0, 0) is probabilities


def test_min_p_keeps_what_is_that_likely_beside_the_most_likely() -> None:
    probabilities = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    # half of 0.4 is 0.2, which stays
    assert keep_likely(probabilities, 1.0, 0, 0.5).tolist() == torch.tensor([[0.0, 0.4, 0.2, 0.3]]).tolist()
    assert keep_likely(probabilities, 1.0, 0, 1.0).tolist() == torch.tensor([[0.0, 0.4, 0.0, 0.0]]).tolist()


def test_log_probs_are_of_the_whole_distribution_at_the_temperature() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    row = np.zeros(1, np.int64)
    tokens, log_probs = sample(logits, Sampling(temperature=0.5, top_k=1), random_streams(0, row), row)
    # logits / 0.5 = [0 2 4]: log softmax of the last is -log(1 + e^-2 + e^-4) = -0.14293
    assert tokens.tolist() == [2]
    torch.testing.assert_close(log_probs, torch.tensor([-0.14293]), atol=1e-5, rtol=0)


def test_sampled_frequencies_are_the_probabilities() -> None:
    logits = torch.log(torch.tensor([0.2, 0.5, 0.3])).repeat(20_000, 1)
    rows = np.arange(20_000)
    tokens, _ = sample(logits, Sampling(), random_streams(3, rows), np.zeros_like(rows))
    shares = torch.bincount(tokens, minlength=3) / 20_000
    # standard deviation of a share is at most 0.0036
    torch.testing.assert_close(shares, torch.tensor([0.2, 0.5, 0.3]), atol=0.015, rtol=0)


def test_rows_that_are_drawn_in_different_ways_get_what_each_way_gives() -> None:
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ways, way_of = (Sampling(temperature=0), Sampling(temperature=0.7), Sampling(top_k=2)), np.array([1, 0, 2, 1, 0])
    streams, draws = random_streams(4, np.arange(5)), np.array([0, 3, 1 << 32, 9, 2])
    tokens, log_probs = sample_each(logits, ways, way_of, streams, draws)
    for row, way in enumerate(way_of.tolist()):
        token, log_prob = sample(logits[[row]], ways[way], streams[[row]], draws[[row]])
        assert (tokens[row], log_probs[row]) == (token, log_prob)
