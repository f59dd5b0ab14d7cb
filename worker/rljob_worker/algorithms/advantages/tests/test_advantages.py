"""Advantages of GRPO, REINFORCE++ and GAE, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.algorithms.advantages import gae, group_spread, grpo_advantages, last_action_values, whiten
from rljob_worker.algorithms.tests.builders import double, ints, rows_of

REWARDS = st.lists(st.floats(-10, 10, allow_subnormal=False).map(lambda x: round(x, 3)), min_size=1, max_size=30)


def test_grpo_by_hand():
    # mean 0.5; variance 4·0.25 / 3 = 1/3 (Bessel); A = ±0.5 / (0.5773502692 + 1e-6) = ±0.8660239
    result = grpo_advantages(double(1, 0, 0, 1), ints(5, 5, 5, 5))
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert torch.allclose(result, expected * double(1, -1, -1, 1), rtol=0, atol=1e-15)


def test_trap_1_without_the_standard_deviation_a_hard_prompt_weighs_no_more():
    # 1 of 4 right: mean 0.25
    assert grpo_advantages(double(1, 0, 0, 0), ints(0, 0, 0, 0), normalize_std=False).tolist() == [
        0.75,
        -0.25,
        -0.25,
        -0.25,
    ]


def test_trap_6_the_standard_deviation_has_one_degree_of_freedom_less():
    # two rows 0 and 2: mean 1, variance (1 + 1) / 1 = 2
    result = grpo_advantages(double(0, 2), ints(0, 0), epsilon=0.0)
    assert torch.allclose(result, double(-1, 1) / math.sqrt(2))


def test_trap_7_a_group_of_one_has_no_advantage():
    assert grpo_advantages(double(5, 1, 3), ints(0, 1, 1))[0] == 0.0
    assert grpo_advantages(double(5), ints(9)).tolist() == [0.0]
    assert grpo_advantages(double(5), ints(9), normalize_std=False).tolist() == [0.0]


def test_trap_8_groups_are_found_by_id_whatever_their_size_and_order():
    # group 7 holds 1, 2, 3 (mean 2, std 1); group 2 holds 10, 30 (mean 20, std √200)
    result = grpo_advantages(double(1, 10, 2, 30, 3), ints(7, 2, 7, 2, 7), epsilon=0.0)
    assert torch.allclose(result, double(-1, -10 / math.sqrt(200), 0, 10 / math.sqrt(200), 1))


def test_trap_9_equal_rewards_give_exactly_zero():
    # 0.1 has no exact mean in binary: 0.1 + 0.1 + 0.1 is not 3 · 0.1
    for normalize_std in (True, False):
        result = grpo_advantages(double(0.1, 0.1, 0.1), ints(0, 0, 0), normalize_std=normalize_std)
        assert result.tolist() == [0.0, 0.0, 0.0]


def test_trap_10_epsilon_is_added_to_the_standard_deviation():
    # rewards 0 and 2e-6: std √2·1e-6; A = ±1e-6 / (1.414e-6 + 1e-6); inside the root it would be ±1e-6 / 1e-3
    result = grpo_advantages(double(0, 2e-6), ints(0, 0))
    assert result[1].item() == pytest.approx(1 / (math.sqrt(2) + 1), rel=1e-9)


def test_trap_40_float32_rewards_are_compared_in_float64():
    rewards = torch.tensor([1e8, 1e8 + 8], dtype=torch.float32)
    assert grpo_advantages(rewards, ints(0, 0), normalize_std=False).tolist() == [-4, 4]


def test_no_rows():
    assert grpo_advantages(double(), ints()).tolist() == []
    assert group_spread(double(), ints()).tolist() == []


def test_spread_of_groups():
    assert group_spread(double(1, 5, 2), ints(4, 0, 4)).tolist() == [0, 1]  # by ascending id


@given(rewards=REWARDS, seed=st.integers(0, 1000), shift=st.floats(-5, 5))
def test_group_statistics(rewards, seed, shift):
    generator = torch.Generator().manual_seed(seed)
    values = double(*rewards)
    group_ids = torch.randint(0, 4, (len(rewards),), generator=generator) * 1000
    result = grpo_advantages(values, group_ids)
    order = torch.randperm(len(rewards), generator=generator)
    for group in group_ids.unique():
        members = result[group_ids == group]
        assert abs(members.sum()) < 1e-6  # a baseline
        if len(members) > 1 and members.abs().max() > 0 and values[group_ids == group].std() > 1e-2:
            assert members.std().item() == pytest.approx(1.0, rel=1e-3)
    assert torch.allclose(grpo_advantages(values[order], group_ids[order]), result[order], atol=1e-10)
    # rewards are distinct by 1e-3 or equal, so a shift that rounds does not merge them
    assert torch.allclose(grpo_advantages(values + shift, group_ids), result, atol=1e-3)


# --- generalized advantage estimation


def test_gae_by_hand():
    # γ = 0.9, λ = 0.5; δ = (0.9·0.6 - 0.5, 0.9·0.7 - 0.6, 1 - 0.7) = (0.04, 0.03, 0.3)
    # A_2 = 0.3;  A_1 = 0.03 + 0.45·0.3 = 0.165;  A_0 = 0.04 + 0.45·0.165 = 0.11425
    advantages, returns = gae(
        double(0, 0, 1), double(0.5, 0.6, 0.7), rows_of([3]), ints(1, 1, 1), num_rows=1, gamma=0.9, lam=0.5
    )
    assert torch.allclose(advantages, double(0.11425, 0.165, 0.3), rtol=0, atol=1e-15)
    assert torch.allclose(returns, double(0.61425, 0.765, 1.0), rtol=0, atol=1e-15)


def test_gae_does_not_leak_between_rows():
    together, _ = gae(
        double(0, 1, 0, 5), double(0.1, 0.2, 0.3, 0.4), rows_of([2, 0, 2]), ints(1, 1, 1, 1), num_rows=3, gamma=1, lam=1
    )
    # γ = λ = 1: A_t = (sum of later rewards) - V_t
    assert torch.allclose(together, double(0.9, 0.8, 4.7, 4.6))


def test_trap_26_returns_cross_observations_and_only_actions_are_discounted():
    rewards, values = double(0, 0, 1), double(0.5, 0.6, 0.7)
    without = gae(rewards, values, rows_of([3]), ints(1, 1, 1), num_rows=1, gamma=0.9, lam=0.5)
    # two observation tokens after the first action, one before it; what they hold must not matter
    across = gae(
        double(77, 0, 99, -99, 0, 1),
        double(8, 0.5, 9, torch.nan, 0.6, 0.7),
        rows_of([6]),
        ints(0, 1, 0, 0, 1, 1),
        num_rows=1,
        gamma=0.9,
        lam=0.5,
    )
    actions = ints(1, 4, 5)
    for expected, result in zip(without, across, strict=True):
        assert torch.equal(result[actions], expected)
        assert result[ints(0, 2, 3)].tolist() == [0, 0, 0]


def test_trap_37_a_truncated_row_goes_on_with_the_critics_value():
    values, row, mask = double(0.5, 0.6, 0.5, 0.6), rows_of([2, 2]), ints(1, 1, 1, 1)
    after = last_action_values(values, row, mask, torch.tensor([True, False]))
    assert after.tolist() == [0.6, 0.0]
    advantages, _ = gae(double(0, 0, 0, 0), values, row, mask, num_rows=2, gamma=1, lam=1, bootstrap_values=after)
    # truncated: A = 0.6 - V_t;  ended: A = 0 - V_t
    assert torch.allclose(advantages, double(0.1, 0.0, -0.5, -0.6))


def test_last_action_values_look_past_trailing_observations_and_rows_without_actions():
    after = last_action_values(double(1, 2, 3, 4), rows_of([2, 2]), ints(1, 0, 0, 0), torch.tensor([True, True]))
    assert after.tolist() == [1, 0]


def test_gae_of_rows_without_actions_and_of_nothing():
    advantages, returns = gae(double(1, 2), double(3, 4), rows_of([2]), ints(0, 0), num_rows=1, gamma=1, lam=1)
    assert advantages.tolist() == returns.tolist() == [0, 0]
    assert gae(double(), double(), ints(), ints(), num_rows=0, gamma=1, lam=1)[0].tolist() == []


def test_gae_of_a_batch_larger_than_a_chunk_equals_gae_row_by_row():
    lengths = [40_000, 3, 30_000]
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, sum(lengths), generator=generator, dtype=torch.float64)
    mask = torch.rand(sum(lengths), generator=generator) > 0.2
    options = {"gamma": 0.99, "lam": 0.95}
    together = gae(rewards, values, rows_of(lengths), mask, num_rows=3, **options)
    alone = [
        gae(r, v, rows_of([len(r)]), m, num_rows=1, **options)
        for r, v, m in zip(rewards.split(lengths), values.split(lengths), mask.split(lengths), strict=True)
    ]
    for which in range(2):
        assert torch.allclose(together[which], torch.cat([part[which] for part in alone]), rtol=0, atol=1e-9)


def test_gae_with_lambda_zero_is_the_one_step_error():
    advantages, _ = gae(double(0, 1), double(0.5, 0.25), rows_of([2]), ints(1, 1), num_rows=1, gamma=0.5, lam=0.0)
    assert advantages.tolist() == [0.5 * 0.25 - 0.5, 1 - 0.25]


# --- whitening


def test_whitening_by_hand():
    # actions 1, 2, 3: mean 2, variance (1 + 0 + 1) / 2 = 1; the observation is neither read nor written
    result = whiten(double(1, torch.nan, 2, 3), ints(1, 0, 1, 1), epsilon=0.0)
    assert result.tolist() == [-1, 0, 0, 1]


def test_trap_29_whitening_is_undefined_below_two_tokens():
    assert whiten(double(5, 7), ints(1, 0)).tolist() == [5, 0]
    assert whiten(double(5, 7), ints(0, 0)).tolist() == [0, 0]
    assert whiten(double(), ints()).tolist() == []


def test_whitening_of_equal_advantages_is_zero():
    assert whiten(double(3, 3, 3), ints(1, 1, 1)).tolist() == [0, 0, 0]


@given(values=REWARDS, seed=st.integers(0, 1000), ranks=st.integers(1, 4))
def test_trap_29_whitening_covers_the_whole_batch_however_it_is_split(values, seed, ranks):
    generator = torch.Generator().manual_seed(seed)
    advantages = double(*values)
    mask = torch.rand(len(values), generator=generator) > 0.3
    owner = torch.randint(0, ranks, (len(values),), generator=generator)
    parts = [(advantages[owner == rank], mask[owner == rank]) for rank in range(ranks)]
    whole = whiten(advantages, mask)
    for rank, result in enumerate(_whiten_on_ranks(parts)):
        assert torch.allclose(result, whole[owner == rank], rtol=0, atol=1e-10)


def _whiten_on_ranks(parts):
    """`whiten` on every rank, with sums that are gathered in a first run for the first reduction, and so on."""
    sums: list[torch.Tensor] = []
    for round_index in range(3):
        locals_: list[torch.Tensor] = []
        results = []
        for advantages, mask in parts:
            calls = iter(range(3))

            def reduce(local, calls=calls, round_index=round_index, locals_=locals_):
                call = next(calls)
                if call == round_index:
                    locals_.append(local)
                return sums[call] if call < len(sums) else local

            results.append(whiten(advantages, mask, reduce))
        if locals_:
            sums.append(torch.stack(locals_).sum(0))
    return results
