"""Traps of the field that cross the modules; the others are tested beside what they concern, under their number."""

import math

import pytest
import torch

from rljob_worker.algorithms.advantages import discounted_returns, grpo_advantages
from rljob_worker.algorithms.advantages.token_rewards import token_level_rewards
from rljob_worker.algorithms.aggregation import SequenceMeanTokenMean, SequenceMeanTokenSumNorm, TokenMean, aggregate
from rljob_worker.algorithms.kl import k3, k3_unclamped
from rljob_worker.algorithms.policy_losses import ppo_clip
from rljob_worker.algorithms.tests.builders import double, ints, rows_of


def test_trap_01_the_constant_of_dr_grpo_is_not_the_width_of_the_batch():
    # rows of 2 and 1 tokens, sums 2 and 1, constant 10: (2 + 1) / 10 / 2 rows, however wide the micro-batch is
    result = aggregate(SequenceMeanTokenSumNorm(10.0), double(1, 1, 1), rows_of([2, 1]), ints(2, 1), 2.0)
    assert result.item() == pytest.approx(0.15)


def test_trap_03_ranks_that_share_a_row_would_count_it_twice():
    """Denominators are counts of rows and tokens that a rank owns: two halves add up to the whole, not to twice it."""
    whole = TokenMean().units(ints(2, 1, 3)).sum()
    assert TokenMean().units(ints(2, 1)).sum() + TokenMean().units(ints(3)).sum() == whole


def test_trap_05_fully_masked_sequence_in_a_seq_mean():
    # rows: 2 tokens of 3 (mean 3), none, 1 token of 5; (3 + 5) / 2 rows with tokens = 4, not / 3
    lengths = ints(2, 0, 1)
    count = SequenceMeanTokenMean().units(lengths).sum()
    assert count == 2
    assert aggregate(SequenceMeanTokenMean(), double(3, 3, 5), rows_of([2, 0, 1]), lengths, float(count)) == 4


def test_trap_12_metrics_are_of_the_unclamped_divergence():
    # r = e^25: the loss goes on as a tangent, the metric is e^25 - 1 - 25
    distant = double(-25.0)
    exact = math.expm1(25) - 25
    assert k3_unclamped(distant, double(0)).item() == pytest.approx(exact)
    assert k3(distant, double(0), double(0)).item() < exact


def test_trap_13_a_penalty_in_the_reward_is_there_once():
    # β·kl of each action is in the token rewards; a row's reward is on its last action alone
    rewards = token_level_rewards(double(1), double(0.5, 0.25), 0.1, rows_of([2]), ints(1, 1))
    assert torch.allclose(rewards, double(-0.05, 1 - 0.025))
    assert rewards.sum().item() == pytest.approx(1 - 0.1 * 0.75)


def test_trap_23_the_last_action_carries_the_reward_and_observations_behind_it_none():
    rewards = token_level_rewards(double(2), None, 0.0, rows_of([4]), ints(1, 1, 0, 0))
    assert rewards.tolist() == [0, 2, 0, 0]
    assert discounted_returns(rewards, rows_of([4]), ints(1, 1, 0, 0), num_rows=1, gamma=1.0).tolist() == [2, 2, 0, 0]


def test_trap_23_a_row_out_of_the_loss_stays_in_the_baseline_of_its_group():
    # rewards 0 and 2: the truncated row with 0 still makes the baseline 1
    assert grpo_advantages(double(0, 2), ints(0, 0), normalize_std=False)[1] == 1.0


def test_trap_18_the_ratio_is_taken_against_the_old_policy_alone():
    """The mismatch with the rollout is a factor of its own: at π = π_old the loss is -A whatever the rollout said."""
    log_probs = double(-1.0, -2.0)
    result = ppo_clip(log_probs, log_probs, double(2, -1), clip_low=0.2, clip_high=0.2)
    assert result.losses.tolist() == [-2, 1]


def test_trap_35_each_term_has_a_denominator_of_its_own():
    """A KL or entropy term aggregated over the same rows is not diluted by how the policy term counts."""
    row, lengths = rows_of([1, 3]), ints(1, 3)
    per_token, per_row = (
        aggregate(item, double(4, 0, 0, 0), row, lengths, float(item.units(lengths).sum()))
        for item in (TokenMean(), SequenceMeanTokenMean())
    )
    assert (per_token.item(), per_row.item()) == (1.0, 2.0)


def test_trap_40_group_statistics_do_not_depend_on_the_order_of_float32_rewards():
    rewards = torch.tensor([1e7, 0.1, -1e7, 0.1, 0.3], dtype=torch.float32)
    order = ints(3, 1, 4, 0, 2)
    groups = torch.zeros(5, dtype=torch.int64)
    assert torch.equal(grpo_advantages(rewards, groups)[order], grpo_advantages(rewards[order], groups))
