"""The losses Clip-Cov and KL-Cov, by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.algorithms import POLICY_LOSSES, policy_objective
from rljob_worker.algorithms.advantages import no_reduce
from rljob_worker.algorithms.policy_losses import (
    MiniBatchTokens,
    PreparedPolicyLoss,
    clip_cov,
    covariances,
    kl_cov,
    ppo_clip,
)
from rljob_worker.algorithms.policy_losses.selection import digits_of_floats, largest_over_ranks
from rljob_worker.algorithms.tests.builders import algorithm, double, ints
from rljob_worker.algorithms.tests.ranks import on_ranks

LN2 = math.log(2)


def tokens(log_probs: torch.Tensor, advantages: torch.Tensor) -> MiniBatchTokens:
    index = torch.arange(len(log_probs))
    return MiniBatchTokens(log_probs, advantages, row_ids=index // 3, positions=index % 3)


def held_back(name: str, given_tokens: MiniBatchTokens, reduce=no_reduce, seed: int = 5, **options) -> torch.Tensor:
    loss = POLICY_LOSSES[name]
    assert isinstance(loss, PreparedPolicyLoss)
    return loss.prepare(given_tokens, algorithm(loss={"name": name, **options}).loss, reduce, seed)["held_back"]


def test_covariances_by_hand():
    # means -2 and 1: (1·1, 0·1, -1·-2)
    result, count = covariances(double(-1, -2, -3), double(2, 2, -1), no_reduce)
    assert result.tolist() == [1, 0, 2]
    assert count == 3


def test_kl_cov_holds_back_the_largest_covariances():
    # covariances 1, 0, 2 as above; 40 % of three tokens is one, 70 % are two
    given_tokens = tokens(double(-1, -2, -3), double(2, 2, -1))
    assert held_back("KLCov", given_tokens, covarianceFraction=0.4).tolist() == [False, False, True]
    assert held_back("KLCov", given_tokens, covarianceFraction=0.7).tolist() == [True, False, True]
    assert held_back("KLCov", given_tokens, covarianceFraction=0.0001).tolist() == [False, False, True]  # at least one


def test_clip_cov_holds_back_tokens_between_the_bounds():
    given_tokens = tokens(double(-1, -2, -3), double(2, 2, -1))
    options = {"covarianceFraction": 1.0, "covarianceLow": 0.5, "covarianceHigh": 1.5}
    assert held_back("ClipCov", given_tokens, **options).tolist() == [True, False, False]
    options = {"covarianceFraction": 1.0, "covarianceLow": 5.0, "covarianceHigh": 6.0}
    assert held_back("ClipCov", given_tokens, **options).tolist() == [False, False, False]


def test_clip_cov_holds_back_none_on_a_bound_and_one_at_least():
    given_tokens = tokens(double(-1, -2, -3), double(2, 2, -1))  # covariances 1, 0, 2
    for bounds in ({"covarianceLow": 1.0, "covarianceHigh": 1.5}, {"covarianceLow": 0.5, "covarianceHigh": 1.0}):
        assert not held_back("ClipCov", given_tokens, covarianceFraction=1.0, **bounds).any()
    few = held_back("ClipCov", given_tokens, covarianceFraction=0.0001, covarianceLow=-1.0, covarianceHigh=3.0)
    assert few.sum() == 1


def test_a_token_alone_varies_with_nothing():
    assert covariances(double(-1), double(2), no_reduce)[0].tolist() == [0]


@pytest.mark.parametrize("name", ["ClipCov", "KLCov"])
def test_an_update_gives_the_loss_what_it_prepared(name):
    spec, loss = algorithm(loss={"name": name}), POLICY_LOSSES[name]
    assert isinstance(loss, PreparedPolicyLoss)
    made = loss.prepare(tokens(double(-1, -2), double(2, 2)), spec.loss, no_reduce, 5)
    objective = policy_objective(spec, max_response_tokens=5, has_old_log_probs=True, made=made)
    assert objective.columns[-1] == "held_back" and list(made) == ["held_back"]


def test_the_losses_by_hand():
    # ρ = 2, A = 1: clipped at 1.2 -> -1.2; held back: 0.   ρ = 2: -2; held back: -2 + 0.5·ln 2, gradient -2 + 0.5
    log_probs = double(LN2, LN2).requires_grad_()
    held = torch.tensor([False, True])
    result = clip_cov(log_probs, double(0, 0), double(-1, -1), held, clip_low=0.2, clip_high=0.2)
    result.losses.sum().backward()
    assert torch.allclose(result.losses, double(2, 0))
    assert torch.allclose(log_probs.grad, double(2, 0))
    log_probs = double(LN2, LN2).requires_grad_()
    result = kl_cov(log_probs, double(0, 0), double(1, 1), held, kl_coefficient=0.5)
    result.losses.sum().backward()
    assert torch.allclose(result.losses, double(-2, -2 + 0.5 * LN2))
    assert torch.allclose(log_probs.grad, double(-2, -1.5))


def test_without_tokens_held_back_clip_cov_is_ppo():
    log_probs, advantages = double(0.5, -0.4), double(1, -1)
    bounds = {"clip_low": 0.2, "clip_high": 0.2}
    result = clip_cov(log_probs, double(0, 0), advantages, torch.tensor([False, False]), **bounds)
    assert torch.equal(result.losses, ppo_clip(log_probs, double(0, 0), advantages, **bounds).losses)


@pytest.mark.parametrize("name", ["ClipCov", "KLCov"])
@settings(max_examples=10)
@given(count=st.integers(0, 40), ranks=st.integers(1, 4), seed=st.integers(0, 1000))
def test_the_choice_depends_neither_on_ranks_nor_on_order(name, count, ranks, seed):
    generator = torch.Generator().manual_seed(seed)
    log_probs, advantages = torch.randn(2, count, generator=generator, dtype=torch.float64)
    whole = tokens(-log_probs.abs(), advantages)
    options = {"covarianceFraction": 0.2}
    if name == "ClipCov":
        options |= {"covarianceLow": 0.0, "covarianceHigh": 9.0}
    expected = held_back(name, whole, **options)
    owner = torch.randint(0, ranks, (count,), generator=generator)
    mine = [torch.randperm(int((owner == rank).sum()), generator=generator) for rank in range(ranks)]
    places = [(owner == rank).nonzero().squeeze(1)[order] for rank, order in enumerate(mine)]

    def work(rank: int, reduce) -> torch.Tensor:
        at = places[rank]
        part = MiniBatchTokens(whole.old_log_probs[at], whole.advantages[at], whole.row_ids[at], whole.positions[at])
        return held_back(name, part, reduce, **options)

    for at, result in zip(places, on_ranks(ranks, work), strict=True):
        assert torch.equal(result, expected[at])


def test_clip_cov_draws_other_tokens_with_another_seed_and_the_same_with_the_same():
    generator = torch.Generator().manual_seed(0)
    log_probs, advantages = torch.randn(2, 300, generator=generator, dtype=torch.float64)
    options = {"covarianceFraction": 0.1, "covarianceLow": 0.0, "covarianceHigh": 9.0}
    draws = [held_back("ClipCov", tokens(log_probs, advantages), seed=seed, **options) for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert [int(draw.sum()) for draw in draws] == [30, 30, 30]


@settings(max_examples=60)
@given(values=st.lists(st.floats(-1e9, 1e9), max_size=30), count=st.integers(1, 12))
def test_selection_finds_the_largest(values, count):
    column = double(*values)
    largest = largest_over_ranks(digits_of_floats(column), torch.ones(len(values), dtype=torch.bool), count, no_reduce)
    least = sorted(values, reverse=True)[:count][-1:] or [np.inf]
    assert largest.tolist() == [value >= least[0] for value in values]  # equal ones are in together


def test_selection_among_candidates_only():
    among = torch.tensor([False, True, True])
    digits = digits_of_floats(double(9, 1, 2))
    assert largest_over_ranks(digits, among, 1, no_reduce).tolist() == [False, False, True]
    assert largest_over_ranks(digits, among, 5, no_reduce).tolist() == [False, True, True]


def test_floats_order_by_their_digits():
    ordered = double(-np.inf, -1e300, -1.0, -1e-300, -0.0, 1e-300, 1.0, 1e300, np.inf)
    digits = digits_of_floats(ordered)
    keys = [tuple(column) for column in digits.T.tolist()]
    assert keys == sorted(keys)
    assert digits_of_floats(double(-0.0)).tolist() == digits_of_floats(double(0.0)).tolist()
    assert ints(65535).max() >= digits.max()
