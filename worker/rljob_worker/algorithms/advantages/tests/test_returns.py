"""Rewards still to come, ReMax, and GAE along several agents."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.algorithms.advantages import discounted_returns, gae, marft_gae, remax_advantages, whiten
from rljob_worker.algorithms.tests.builders import double, ints, rows_of


def test_discounted_returns_by_hand():
    # γ = 0.5: G_2 = 4, G_1 = 1 + 2 = 3, G_0 = 0 + 1.5; the second row starts anew
    result = discounted_returns(double(0, 1, 4, 8), rows_of([3, 1]), ints(1, 1, 1, 1), num_rows=2, gamma=0.5)
    assert result.tolist() == [1.5, 3, 4, 8]


def test_trap_26_returns_of_reinforce_cross_observations():
    # two observations between the actions: one action apart, so one discount
    rewards, mask = double(0, 99, 99, 4), ints(1, 0, 0, 1)
    assert discounted_returns(rewards, rows_of([4]), mask, num_rows=1, gamma=0.5).tolist() == [2, 0, 0, 4]
    result = remax_advantages(rewards, double(1), rows_of([4]), mask, num_rows=1)
    assert result.tolist() == [3, 0, 0, 3]


def test_remax_by_hand():
    # penalties on the way: returns (-1 + 3, 3); baselines 1 and 5
    result = remax_advantages(double(-1, 3, 2), double(1, 5), rows_of([2, 1]), ints(1, 1, 1), num_rows=2)
    assert result.tolist() == [1, 2, -3]


def test_marft_by_hand():
    # turn 0: agent 0 says two tokens, agent 1 one; turn 1: agent 0 one. γ = 1, λ = ½, rewards on each last token
    # δ = (0 + 2 - 1, 1 + 3 - 2, 1 + 4 - 3, 1 + 0 - 4) = (1, 2, 2, -3)
    # A_3 = -3, A_2 = 2 - 1.5 = 0.5, A_1 = 2 + 0.25 = 2.25, A_0 = 1 + 1.125 = 2.125
    advantages, returns = marft_gae(
        double(0, 1, 1, 1),
        double(1, 2, 3, 4),
        rows_of([4]),
        ints(1, 1, 1, 1),
        ints(0, 0, 1, 0),
        ints(0, 0, 0, 1),
        num_rows=1,
        gamma=1.0,
        lam=0.5,
    )
    assert advantages.tolist() == [2.125, 2.25, 0.5, -3]
    assert returns.tolist() == [3.125, 4.25, 3.5, 1]


@settings(max_examples=40)
@given(lengths=st.lists(st.integers(0, 8), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_marft_follows_the_order_of_acting_wherever_tokens_lie(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    count = sum(lengths)
    row = rows_of(lengths)
    turns, agents = torch.randint(0, 3, (2, count), generator=generator)
    mask = torch.randint(0, 2, (count,), generator=generator)
    rewards, values = torch.randn(2, count, generator=generator, dtype=torch.float64)
    options = {"num_rows": len(lengths), "gamma": 0.9, "lam": 0.8}
    result = marft_gae(rewards, values, row, mask, agents, turns, **options)
    for index in range(len(lengths)):
        mine = (row == index).nonzero().squeeze(1)
        order = mine[torch.argsort(turns[mine] * 10 + agents[mine], stable=True)]
        options = {"num_rows": 1, "gamma": 0.9, "lam": 0.8}
        expected = gae(rewards[order], values[order], torch.zeros_like(order), mask[order], **options)
        for which in range(2):
            assert torch.allclose(result[which][order], expected[which], rtol=0, atol=1e-12)


def test_an_agent_without_a_token_is_passed_over():
    # agent 1 says nothing in turn 0: agent 0's last token bootstraps from turn 1
    options = {"num_rows": 1, "gamma": 1.0, "lam": 0.0}
    result, _ = marft_gae(double(0, 0), double(1, 5), rows_of([2]), ints(1, 1), ints(0, 1), ints(0, 1), **options)
    assert result.tolist() == [4, -5]


def test_whitening_by_kind():
    # kind 0: 1, 3 (mean 2, variance 2); kind 5: 10, 30 (mean 20, variance 200); kind 9 is alone
    result = whiten(double(1, 10, 3, 30, 7), ints(1, 1, 1, 1, 1), kinds=ints(0, 5, 0, 5, 9), epsilon=0.0)
    half = 0.5**0.5
    assert torch.allclose(result, double(-half, -half, half, half, 7))


@pytest.mark.parametrize("kinds", [None, ints()])
def test_nothing_is_whitened_to_nothing(kinds):
    assert whiten(double(), ints(), kinds=kinds).tolist() == []
