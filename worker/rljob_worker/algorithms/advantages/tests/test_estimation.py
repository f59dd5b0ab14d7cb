"""The estimator of a job, applied to a whole batch."""

import math

import numpy as np
import pytest

from rljob_worker.algorithms import estimate_advantages
from rljob_worker.algorithms.tests.builders import algorithm, ragged_batch
from rljob_worker.batch import Batch, Column


def batch_of(rewards, group_ids, lengths, **ragged) -> Batch:
    columns = {"rewards": Column.fixed(np.array(rewards, np.float64))}
    columns["response_mask"] = Column.from_lengths(np.ones(sum(lengths), np.uint8), lengths)
    columns |= {name: Column.from_lengths(np.array(v, np.float64), lengths) for name, v in ragged.items()}
    return Batch.build(np.arange(len(rewards)), group_ids, columns)


def test_grpo_gives_every_action_the_advantage_of_its_row():
    batch = batch_of([0, 2], [4, 4], [2, 1])
    result, metrics = estimate_advantages(batch, algorithm(advantage={"normalizeStd": False}), max_response_tokens=10)
    assert result.advantages.tolist() == [-1, -1, 1]
    assert result.returns is None
    assert metrics["reward/zero_variance_groups"].value == 0.0


@pytest.mark.parametrize(
    ("options", "advantages"),
    [
        # the mean of the others: 1 beside the 4, (4 + 1) / 2 beside each 1
        ({"estimator": "RLOO"}, [3, 3, -1.5, -1.5]),
        # the mean of all tokens: (2·4 + 1 + 1) / 4 = 2.5
        ({"estimator": "OPO"}, [1.5, 1.5, -1.5, -1.5]),
        # the best over the second best
        ({"estimator": "GRPOPassK", "normalizeStd": False}, [3, 3, 0, 0]),
    ],
    ids=["RLOO", "OPO", "GRPOPassK"],
)
def test_rows_of_a_prompt_are_compared_by_the_estimator_of_the_job(options, advantages):
    batch = batch_of([4, 1, 1], [7, 7, 7], [2, 1, 1])
    result, _ = estimate_advantages(batch, algorithm(advantage=options), max_response_tokens=10)
    assert result.advantages.tolist() == advantages


def test_observations_have_no_advantage():
    batch = batch_of([0, 2], [4, 4], [2, 1])
    batch = batch.with_columns({"response_mask": Column.ragged([[1, 0], [1]], "uint8")})
    result, _ = estimate_advantages(batch, algorithm(advantage={"normalizeStd": False}), max_response_tokens=10)
    assert result.advantages.tolist() == [-1, 0, 1]


def test_ppo_gives_advantages_and_returns():
    # γ = λ = 1: A = reward - V, return = reward
    batch = batch_of([1], [0], [2], values=[0.25, 0.5])
    result, _ = estimate_advantages(batch, algorithm("PPO", advantage={"whiten": False}), max_response_tokens=10)
    assert result.advantages.tolist() == [0.75, 0.5]
    assert result.returns is not None
    assert result.returns.tolist() == [1, 1]


@pytest.mark.parametrize("name", ["GAE", "MARFT"])
def test_a_critics_estimators_discount_by_gamma_and_lambda(name):
    # γ = 0.9, λ = 0.5; δ = (0.9·0.6 - 0.5, 0.9·0.7 - 0.6, 1 - 0.7) = (0.04, 0.03, 0.3)
    # A_2 = 0.3;  A_1 = 0.03 + 0.45·0.3 = 0.165;  A_0 = 0.04 + 0.45·0.165 = 0.11425
    batch = batch_of([1], [0], [3], values=[0.5, 0.6, 0.7], agent_ids=[0, 0, 0], turn_ids=[0, 0, 0])
    options = {"estimator": name, "gamma": 0.9, "lambda": 0.5, "whiten": False}
    result, _ = estimate_advantages(batch, algorithm("PPO", advantage=options), max_response_tokens=10)
    assert result.advantages.tolist() == pytest.approx([0.11425, 0.165, 0.3])
    assert result.returns is not None
    assert result.returns.tolist() == pytest.approx([0.61425, 0.765, 1.0])


def test_gae_goes_from_turn_to_turn_past_what_the_world_says_and_from_row_to_row():
    # Turns of two tokens and of one, which earn 1 and 2, with two tokens of the world between them; then the same turns
    # in a row each. γ = λ = 0.5; δ = (0.5·2 - 1, 1 + 0.5·4 - 2, 2 - 4) = (0, 1, -2)
    # A of the second turn = -2; of the first: 1 - 0.25·2 = 0.5 and 0 + 0.25·0.5 = 0.125; returns are A + V
    columns = {
        "rewards": Column.fixed(np.array([3.0, 3.0, 3.0])),
        "response_mask": Column.ragged([[1, 1, 0, 0, 1], [1, 1], [1]], "uint8"),
        "step_rewards": Column.ragged([[0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 1.0], [0.0]], "float64"),
        "values": Column.ragged([[1.0, 2.0, 90.0, 91.0, 4.0], [1.0, 2.0], [4.0]], "float64"),
    }
    spec = algorithm("PPO", advantage={"gamma": 0.5, "lambda": 0.5, "whiten": False}, kl={"coefficient": 0})
    batch = Batch.build([0, 2, 3], [0, 0, 0], columns)
    result, _ = estimate_advantages(batch, spec, max_response_tokens=5, rows_per_trajectory=2)
    assert result.advantages.tolist() == [0.125, 0.5, 0, 0, -2, 0.125, 0.5, -2]
    assert result.returns is not None
    assert result.returns.tolist() == [1.125, 2.5, 0, 0, 2, 1.125, 2.5, 2]


def test_ppo_whitens_advantages_and_not_returns():
    batch = batch_of([1, 0], [0, 1], [2, 1], values=[0.25, 0.5, 0.0])
    result, _ = estimate_advantages(batch, algorithm("PPO"), max_response_tokens=10)
    assert result.advantages.mean().item() == pytest.approx(0, abs=1e-6)
    assert result.advantages.std().item() == pytest.approx(1, abs=1e-6)
    assert result.returns is not None
    assert result.returns.tolist() == [1, 1, 0]


def test_kl_in_the_reward_of_ppo_is_per_token():
    # K1, β = 0.5: log-ratios (1, 2) -> rewards (-0.5, 1 - 1); γ = λ = 1 and V = 0: A = (-0.5 + 0, 0)
    batch = batch_of([1], [0], [2], values=[0, 0], old_log_probs=[0, 0], ref_log_probs=[-1, -2])
    spec = algorithm(
        "PPO",
        advantage={"whiten": False},
        kl={"estimator": "K1", "coefficient": 0.5, "placement": "Reward"},
    )
    result, metrics = estimate_advantages(batch, spec, max_response_tokens=10)
    assert result.advantages.tolist() == [-0.5, 0]
    k3 = [math.exp(-1), math.exp(-2) + 1]  # e^-x - 1 + x for x = 1, 2
    assert metrics["kl/reference"].value == pytest.approx(sum(k3) / 2)
    assert metrics["kl/reference_row"].value == pytest.approx(sum(k3))


def test_kl_in_the_reward_of_grpo_lowers_the_row_and_follows_the_controller():
    # K1, β = 1 instead of 0.5: rewards 1 - 3 = -2 and 1 - 0 = 1; mean -0.5
    batch = batch_of([1, 1], [0, 0], [2, 1], old_log_probs=[0, 0, 0], ref_log_probs=[-1, -2, 0])
    spec = algorithm(
        advantage={"normalizeStd": False}, kl={"estimator": "K1", "coefficient": 0.5, "placement": "Reward"}
    )
    result, _ = estimate_advantages(batch, spec, max_response_tokens=10, kl_coefficient=1.0)
    assert result.advantages.tolist() == [-1.5, -1.5, 1.5]


def test_the_overlong_penalty_comes_before_the_baseline():
    # 4 tokens allowed, buffer 2: lengths 4 and 2 lose 1 and 0; rewards 0 and 1
    batch = batch_of([1, 1], [0, 0], [4, 2])
    spec = algorithm(advantage={"normalizeStd": False}, overlong={"bufferTokens": 2, "penalty": 1.0})
    result, metrics = estimate_advantages(batch, spec, max_response_tokens=4)
    assert result.advantages.tolist() == [-0.5] * 4 + [0.5] * 2
    assert metrics["reward/overlong"].value == -0.5


@pytest.mark.parametrize("name", ["GRPO", "PPO"])
@pytest.mark.parametrize("lengths", [[], [0, 0, 0], [2, 3, 1]])
def test_rows_without_actions_and_no_rows_are_finite(name, lengths):
    batch = ragged_batch(lengths, masked_rows=range(len(lengths)))
    spec = algorithm(name, kl={"coefficient": 0.1, "placement": "Reward"}, overlong={"bufferTokens": 2})
    result, _ = estimate_advantages(batch, spec, max_response_tokens=4)
    assert not result.advantages.any()
    assert len(result.advantages) == sum(lengths)


def test_an_empty_row_keeps_its_place_in_the_baseline_of_its_group():
    # rewards 0 (no token) and 2: mean 1
    batch = batch_of([0, 2], [0, 0], [0, 1])
    result, _ = estimate_advantages(batch, algorithm(advantage={"normalizeStd": False}), max_response_tokens=4)
    assert result.advantages.tolist() == [1]


def test_rewards_of_steps_count_from_where_they_are_backwards():
    # row 0: steps 0.5 and 0.25 of 1 in all, so 0.25 is left for the end; γ = 1: what is still to come
    # 0.5 + 0.25 + 0.25 = 1, then 0.5 twice, then 0.25; row 1 has none: its 2 are at the end
    steps = {"step_rewards": [0.5, 0.0, 0.25, 0.0, 0.0, 0.0]}
    batch = batch_of([1, 2], [0, 1], [4, 2], **steps)
    options = algorithm("ReinforcePlusPlus", advantage={"whiten": False}, kl={"coefficient": 0.0})
    result, _ = estimate_advantages(batch, options, max_response_tokens=10)
    assert result.advantages.tolist() == [1.0, 0.5, 0.5, 0.25, 2.0, 2.0]


@pytest.mark.parametrize("name", ["GAE", "MARFT"])
def test_a_critic_is_fitted_to_rewards_of_steps(name):
    # γ = λ = 1, V = 0: returns are what is still to come of 1 at the first step and 1 at the end
    ids = {"agent_ids": [0, 0, 0], "turn_ids": [0, 0, 0]}
    batch = batch_of([2], [0], [3], values=[0.0, 0.0, 0.0], step_rewards=[1.0, 0.0, 0.0], **ids)
    options = {"estimator": name, "gamma": 1.0, "lambda": 1.0, "whiten": False}
    result, _ = estimate_advantages(batch, algorithm("PPO", advantage=options), max_response_tokens=10)
    assert result.returns is not None
    assert result.returns.tolist() == [2.0, 1.0, 1.0]
