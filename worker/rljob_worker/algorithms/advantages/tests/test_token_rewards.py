"""Rewards of a row, or of its steps, on tokens."""

import torch

from rljob_worker.algorithms.advantages.token_rewards import token_level_rewards
from rljob_worker.algorithms.tests.builders import double, ints, rows_of


def test_trap_23_the_reward_is_on_the_last_action_which_is_the_end_of_sequence_token():
    result = token_level_rewards(double(5, 7), None, 0.1, rows_of([3, 2]), ints(1, 1, 1, 1, 1))
    assert result.tolist() == [0, 0, 5, 0, 7]


def test_trailing_observations_do_not_take_the_reward():
    result = token_level_rewards(double(5), None, 0.1, rows_of([4]), ints(1, 1, 0, 0))
    assert result.tolist() == [0, 5, 0, 0]


def test_the_penalty_is_on_actions_only():
    # β = 0.5: -0.5·2, observation 0, 5 - 0.5·4
    result = token_level_rewards(double(5), double(2, torch.nan, 4), 0.5, rows_of([3]), ints(1, 0, 1))
    assert result.tolist() == [-1, 0, 3]


def test_rows_without_actions_and_nothing_at_all():
    assert token_level_rewards(double(5, 7), None, 0.1, rows_of([1, 1]), ints(0, 1)).tolist() == [0, 7]
    assert token_level_rewards(double(5, 7), None, 0.1, rows_of([0, 1]), ints(1)).tolist() == [7]
    assert token_level_rewards(double(), double(), 0.1, ints(), ints()).tolist() == []


def test_rewards_of_steps_are_where_steps_end_and_the_rest_is_on_the_last_action():
    # row 0: steps 1 + 2 of a reward of 7, so 4 are left; row 1: nothing is spread
    steps = double(1, 0, 2, 0, 0, 0)
    result = token_level_rewards(double(7, 5), None, 0.1, rows_of([4, 2]), ints(1, 1, 1, 1, 1, 1), steps)
    assert result.tolist() == [1, 0, 2, 4, 0, 5]


def test_a_step_on_the_last_action_is_counted_once():
    # 3 of 3 are at the steps: 1 and 2, the second on the end of the row
    result = token_level_rewards(double(3), None, 0.1, rows_of([3]), ints(1, 1, 1), double(1, 0, 2))
    assert result.tolist() == [1, 0, 2]


def test_a_step_that_ends_at_an_observation_counts_at_the_last_action():
    # β = 0.5 with kl 2: -1 on each action; the 4 of the observation go to the end, beside the 2 that are left of 7
    result = token_level_rewards(double(7), double(2, 9, 2), 0.5, rows_of([3]), ints(1, 0, 1), double(1, 4, 0))
    assert result.tolist() == [1 - 1, 0, 7 - 1 - 1]
