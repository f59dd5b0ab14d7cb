"""Policy objectives: columns, losses, gradients and metrics."""

import math

import pytest
import torch

from rljob_worker.algorithms import (
    AGGREGATIONS,
    policy_objective,
    value_objective,
    with_explained_variance,
)
from rljob_worker.algorithms.objectives import PolicyObjective
from rljob_worker.algorithms.policy_losses import PolicyTokenLosses
from rljob_worker.algorithms.registry import Registry
from rljob_worker.algorithms.tests.builders import (
    Packed,
    Policy,
    algorithm,
    double,
    ints,
    judged,
    ragged_batch,
    rows_of,
)
from rljob_worker.batch import Batch, Column


def grpo(has_old_log_probs=True, **fields) -> PolicyObjective:
    return policy_objective(
        algorithm(**{"kl": {"coefficient": 0.0}, **fields}), max_response_tokens=10, has_old_log_probs=has_old_log_probs
    )


def two_rows(log_probs, **columns) -> Packed:
    """Rows of two and one tokens, the second token an observation."""
    columns = {"response_mask": ints(1, 0, 1), **columns}
    return Packed(log_probs, rows_of([2, 1]), 2, columns, entropy=double(0.5, 9.0, 0.3))


def test_columns_follow_from_what_the_job_uses():
    assert grpo().columns == ("response_mask", "advantages", "old_log_probs")
    assert grpo(has_old_log_probs=False).columns == ("response_mask", "advantages")
    assert grpo(kl={"coefficient": 0.1}).columns[-1] == "ref_log_probs"
    assert grpo(maskTruncated=True).columns[0] == "loss_mask"
    assert value_objective(algorithm("PPO")).columns == ("response_mask", "values", "returns")
    assert value_objective(algorithm("PPO", maskTruncated=True)).columns[0] == "loss_mask"


def test_trap_13_a_penalty_in_the_reward_is_not_in_the_loss():
    objective = grpo(kl={"coefficient": 0.1, "placement": "Reward"})
    assert "ref_log_probs" not in objective.columns
    assert list(objective.counts(ragged_batch([2]))) == ["policy"]


def test_loss_gradient_and_metrics_by_hand():
    # actions: token 0 (ρ 1.5, A 1 -> -1.2, clipped) and token 2 (ρ 0.9, A -1 -> 0.9); token mean (-1.2 + 0.9) / 2
    # KL, β = 0.1, π_ref = π·(½, 1): k3 = (½ - 1 + ln 2, 0), gradient (½, 0): token mean 0.1·0.1931 / 2
    # entropy bonus, η = 0.01: -0.01·(0.5 + 0.3) / 2
    log_probs = double(1.5, 5.0, 0.9).log().requires_grad_()
    tokens = two_rows(
        log_probs,
        advantages=double(1, 100, -1),
        old_log_probs=double(0, 0, 0),
        ref_log_probs=double(0.75, 50, 0.9).log(),
    )
    objective = grpo(kl={"coefficient": 0.1}, loss={"entropyCoefficient": 0.01})
    loss, metrics = judged(objective, tokens, {"policy": 2.0, "kl": 2.0, "entropy": 2.0})
    loss.backward()
    k3 = math.log(2) - 0.5
    assert loss.item() == pytest.approx(-0.15 + 0.1 * k3 / 2 - 0.004, abs=1e-12)
    assert torch.allclose(log_probs.grad, double(0.1 * 0.5 / 2, 0, 0.9 / 2))

    values = {name: scalar.value for name, scalar in metrics.items()}
    old_kl = (0.5 - math.log(1.5) + (-0.1) - math.log(0.9)) / 2  # (ρ - 1) - ln ρ
    assert values == pytest.approx(
        {
            "loss/policy": -0.15,
            "kl/old": old_kl,
            "kl/reference": k3 / 2,
            "kl/reference_row": k3 / 2,
            "policy/ratio": 1.2,
            "policy/ratio_max": 1.5,
            "policy/clip_fraction_low": 0.0,
            "policy/clip_fraction_high": 0.5,
            "policy/entropy": 0.4,
        },
        abs=1e-12,
    )


def test_trap_18_without_old_log_probs_the_ratio_is_one_and_the_gradient_that_of_the_log_prob():
    log_probs = double(-3.0, -1.0, -0.2).requires_grad_()
    loss, metrics = judged(
        grpo(has_old_log_probs=False), two_rows(log_probs, advantages=double(2, 100, -1)), {"policy": 2.0}
    )
    loss.backward()
    assert loss.item() == pytest.approx((-2 + 1) / 2)
    assert log_probs.grad.tolist() == [-1, 0, 0.5]
    assert metrics["policy/ratio_max"].value == 1.0
    assert metrics["kl/old"].value == 0.0


def test_traps_26_and_28_what_is_at_observations_reaches_nothing():
    batch = ragged_batch([4, 3, 2], seed=5)
    observed = batch["response_mask"].values == 0
    assert observed.any()
    poisoned = {}
    for name in ("advantages", "old_log_probs", "ref_log_probs"):
        values = batch[name].values.copy()
        values[observed] = math.inf
        poisoned[name] = Column(values, batch[name].offsets, "float64")
    objective = grpo(kl={"coefficient": 0.1, "estimator": "K3Weighted"})
    clean, dirty = (_run(objective, rows) for rows in (batch, batch.with_columns(poisoned)))
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1])
    assert clean[2] == dirty[2]


def _run(objective, batch: Batch):
    policy = Policy()
    loss, metrics = judged(objective, policy.pack(batch, objective.columns), objective.counts(batch))
    loss.backward()
    return loss.detach(), policy.gradient(), metrics


def test_trap_35_every_term_has_its_own_denominator():
    log_probs = double(0.0, 0.0, 0.0).requires_grad_()
    tokens = two_rows(
        log_probs, advantages=double(1, 1, 1), old_log_probs=double(0, 0, 0), ref_log_probs=double(0, 0, 0)
    )
    objective = grpo(kl={"coefficient": 0.1}, loss={"entropyCoefficient": 0.5})
    # more tokens with a KL or entropy term elsewhere do not thin out the policy's
    loss, _ = objective(tokens, {"policy": 2.0, "kl": 1000.0, "entropy": 80.0})
    assert loss.item() == pytest.approx(-2 / 2 - 0.5 * 0.8 / 80)


@pytest.mark.parametrize("name", AGGREGATIONS.names())
def test_counts_leave_out_fully_masked_rows_and_keep_their_keys_without_rows(name):
    objective = grpo(loss={"aggregation": name, "entropyCoefficient": 0.1}, kl={"coefficient": 0.1})
    batch = ragged_batch([3, 4, 0, 2], masked_rows=[1])
    actions = int(batch["response_mask"].values.sum())
    expected = actions if name == "TokenMean" else 2
    assert objective.counts(batch) == {"policy": expected, "kl": expected, "entropy": expected}
    assert objective.counts(batch.take([])) == {"policy": 0, "kl": 0, "entropy": 0}


@pytest.mark.parametrize("name", AGGREGATIONS.names())
@pytest.mark.parametrize("lengths", [[], [0, 0], [3, 2]])
def test_trap_4_without_actions_loss_is_zero_gradient_zero_and_metrics_merge(name, lengths):
    batch = ragged_batch(lengths, masked_rows=range(len(lengths)))
    objective = grpo(loss={"aggregation": name, "entropyCoefficient": 0.1}, kl={"coefficient": 0.1})
    loss, gradient, metrics = _run(objective, batch)
    assert loss.item() == 0.0
    assert not gradient.any()
    assert all(scalar.sum == 0.0 for scalar in metrics.values())
    assert "policy/ratio_max" not in metrics


def test_a_loss_from_outside_gets_the_columns_that_the_job_says_it_reads(monkeypatch):
    seen = {}

    def truncated_importance(tokens, options):
        seen.update(tokens.columns)
        return PolicyTokenLosses(tokens.log_probs * 2, {"strange_fraction": tokens.columns["rollout_log_probs"] > 0})

    registry = Registry("policy loss")
    registry.register("Theirs")(truncated_importance)
    monkeypatch.setattr("rljob_worker.algorithms.objectives.POLICY_LOSSES", registry)
    spec = algorithm(kl={"coefficient": 0.0})
    theirs = {"name": "Theirs", "reads": ("rollout_log_probs",)}
    spec = spec.model_copy(update={"loss": spec.loss.model_copy(update=theirs)})
    objective = policy_objective(spec, max_response_tokens=10, has_old_log_probs=False)
    assert objective.columns == ("response_mask", "advantages", "rollout_log_probs")
    tokens = two_rows(double(1, 2, 3), advantages=double(0, 0, 0), rollout_log_probs=double(4, 5, -6))
    loss, metrics = judged(objective, tokens, {"policy": 2.0})
    assert seen["rollout_log_probs"].tolist() == [4, -6]
    assert loss.item() == 4.0
    assert metrics["policy/strange_fraction"].value == 0.5


def test_an_objective_may_tell_how_far_the_model_is_from_what_drew_the_tokens():
    objective = grpo(has_old_log_probs=False)
    reporting = objective.reporting_mismatch()
    assert reporting.columns == (*objective.columns, "rollout_log_probs")
    # the actions' probabilities are 1/2 and 1/8 to the trainer, 1/4 and 1/2 to the rollout: ratios 2 and 1/4
    half = math.log(2)
    rollout = double(-2 * half, 5, -half)
    tokens = two_rows(double(-half, 0, -3 * half), advantages=double(1, 1, 1), rollout_log_probs=rollout)
    loss, metrics = judged(reporting, tokens, {"policy": 2.0})
    reported = {name: scalar.value for name, scalar in metrics.items() if name.startswith("mismatch/")}
    assert reported == pytest.approx(
        {
            "mismatch/k1": half / 2,
            "mismatch/k3": (2 + 1 / 4 - 2 + half) / 2,
            "mismatch/ratio_max": 2.0,
            "mismatch/probs_diff": (1 / 4 + 3 / 8) / 2,
            "mismatch/probs_diff_max": 3 / 8,
        }
    )
    plain, silent = judged(objective, tokens, {"policy": 2.0})
    assert plain == loss and silent == {name: scalar for name, scalar in metrics.items() if name not in reported}


def test_the_controllers_coefficient_replaces_the_jobs():
    spec = algorithm(kl={"coefficient": 0.1})
    objective = policy_objective(spec, max_response_tokens=10, has_old_log_probs=False, kl_coefficient=3.0)
    tokens = two_rows(double(0, 0, 0), advantages=double(0, 0, 0), ref_log_probs=double(-math.log(2), 0, 0))
    loss, _ = objective(tokens, {"policy": 2.0, "kl": 2.0})
    assert loss.item() == pytest.approx(3.0 * (math.log(2) - 0.5) / 2)


# --- the critic


def test_value_objective_by_hand():
    # actions: V 0.1, V_old 0, R 1: ½·0.81;  V 0.5, V_old 0, R 1: clipped, ½·0.64;  mean over two tokens
    values = double(0.1, 7.0, 0.5).requires_grad_()
    tokens = Packed(
        double(0, 0, 0),
        rows_of([2, 1]),
        2,
        {"response_mask": ints(1, 0, 1), "values": double(0, 0, 0), "returns": double(1, 1, 1)},
        values=values,
    )
    objective = value_objective(algorithm("PPO"))
    loss, metrics = judged(objective, tokens, {"value": 2.0})
    loss.backward()
    assert loss.item() == pytest.approx((0.405 + 0.32) / 2)
    assert torch.allclose(values.grad, double(-0.45, 0, 0))
    assert metrics["loss/value"].value == pytest.approx(0.3625)
    assert metrics["value/clip_fraction"].value == 0.5
    assert objective.counts(ragged_batch([3], masked_rows=[0])) == {"value": 0.0}


def test_explained_variance_by_hand():
    # R = (0, 2): variance 1.  V = (0, 1): R - V = (0, 1), variance ¼
    tokens = Packed(
        double(0, 0),
        rows_of([1, 1]),
        2,
        {"response_mask": ints(1, 1), "values": double(0, 1), "returns": double(0, 2)},
        values=double(0, 1),
    )
    _, metrics = judged(value_objective(algorithm("PPO")), tokens, {"value": 2.0})
    assert with_explained_variance(metrics)["value/explained_variance"].value == pytest.approx(0.75)


def test_explained_variance_is_left_out_where_it_means_nothing():
    objective = value_objective(algorithm("PPO"))
    empty = ragged_batch([])
    _, metrics = judged(objective, Policy().pack(empty, objective.columns), {"value": 0.0})
    assert "value/explained_variance" not in with_explained_variance(metrics)
    assert with_explained_variance({}) == {}
