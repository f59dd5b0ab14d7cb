"""Parts that a job brings along as `module:function`, with the columns and options that it declares for them."""

import sys
import types

import numpy as np
import pytest

from rljob_worker.algorithms import Advantages, estimate_advantages, policy_objective
from rljob_worker.algorithms.aggregation import TokenMean
from rljob_worker.algorithms.policy_losses import PolicyTokenLosses
from rljob_worker.algorithms.tests.builders import Packed, algorithm, double, ints, judged, rows_of
from rljob_worker.batch import Batch, Column


def scaled_bonus(samples, options, reduce):
    bonus = samples.columns["bonus"].double() * options.options["scale"]
    return Advantages(samples.on_actions(samples.rewards + bonus))


def tempered(tokens, options):
    losses = -tokens.log_probs * tokens.columns["temperature"] * options.options["weight"]
    return PolicyTokenLosses(losses, {"hot": tokens.columns["temperature"] > 1.0})


def doubled_k1(log_probs, ref_log_probs, old_log_probs):
    return 2.0 * (log_probs - ref_log_probs)


class PerHundred(TokenMean):
    """A token mean in per cent."""

    def divisors(self, row, num_rows):
        return 0.01


@pytest.fixture
def mine(monkeypatch):
    module = types.ModuleType("mine")
    module.scaled_bonus, module.tempered, module.doubled_k1 = scaled_bonus, tempered, doubled_k1
    module.per_hundred = lambda max_response_tokens: PerHundred()
    monkeypatch.setitem(sys.modules, "mine", module)


def test_an_estimator_gets_the_columns_and_options_of_the_job(mine):
    columns = {
        "response_mask": Column.from_lengths(np.ones(3, np.uint8), [2, 1]),
        "rewards": Column.fixed([1.0, 2.0]),
        "bonus": Column.fixed([0.5, -0.5]),
    }
    own = {"estimator": "mine:scaled_bonus", "reads": ["bonus"], "options": {"scale": 2.0}}
    spec = algorithm("GRPO", advantage=own, kl={"coefficient": 0.0})
    result, _ = estimate_advantages(Batch.build([0, 1], [0, 0], columns), spec, max_response_tokens=4)
    assert result.advantages.tolist() == [2.0, 2.0, 1.0]  # 1 + 2·½ on two tokens, 2 - 2·½


def test_loss_kl_and_aggregation_get_theirs(mine):
    spec = algorithm(
        "GRPO",
        loss={
            "name": "mine:tempered",
            "reads": ["temperature"],
            "options": {"weight": 3.0},
            "aggregation": "mine:per_hundred",
        },
        kl={"estimator": "mine:doubled_k1", "coefficient": 0.5},
    )
    objective = policy_objective(spec, max_response_tokens=4, has_old_log_probs=False)
    assert "temperature" in objective.columns
    columns = {
        "response_mask": ints(1, 0, 1),
        "advantages": double(0, 0, 0),
        "ref_log_probs": double(-2, 0, -2),
        "temperature": double(1, 9, 2),
    }
    tokens = Packed(double(-1, -5, -1), rows_of([2, 1]), 2, columns)
    loss, metrics = judged(objective, tokens, {"policy": 2.0, "kl": 2.0})
    # in per cent: policy (3 + 6) / 2 · 100, KL ½ · (2 + 2) / 2 · 100
    assert loss.item() == pytest.approx(450.0 + 100.0)
    assert metrics["policy/hot"].value == 0.5
