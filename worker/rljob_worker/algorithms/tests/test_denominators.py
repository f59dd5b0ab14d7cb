"""A row that was drawn w times counts as w rows, and a trajectory once however many rows it has: in the loss, in its
gradient, and in what both are divided by."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.algorithms import AGGREGATIONS, policy_objective, value_objective
from rljob_worker.algorithms.tests.builders import Policy, algorithm, judged, ragged_batch
from rljob_worker.batch import Batch, Column

WEIGHTED = {"sampling": {"resampling": {"method": "PFPPO"}}}


def objectives(aggregation, **fields):
    ppo = algorithm(
        "PPO", loss={"aggregation": aggregation, "entropyCoefficient": 0.05}, kl={"coefficient": 0.2}, **fields
    )
    return [policy_objective(ppo, max_response_tokens=5, has_old_log_probs=True), value_objective(ppo)]


def run(objective, parts):
    policy = Policy()
    counts = [objective.counts(part) for part in parts]
    over_all = {name: sum(count[name] for count in counts) for name in counts[0]}
    result = [judged(objective, policy.pack(part, objective.columns), over_all) for part in parts]
    torch.stack([loss for loss, _ in result]).sum().backward()
    return policy.gradient(), [metrics for _, metrics in result]


@settings(max_examples=40)
@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=8),
    aggregation=st.sampled_from(AGGREGATIONS.names()),
    cut=st.integers(0, 8),
)
def test_a_weight_is_as_many_rows(rows, aggregation, cut):
    lengths, weights = (np.array(item) for item in zip(*rows, strict=True))
    batch = ragged_batch(lengths)
    drawn = np.repeat(np.arange(len(rows)), weights)
    copies = {name: column.take(drawn) for name, column in batch.columns.items()}
    repeated = Batch.build(np.arange(len(drawn)), np.zeros(len(drawn)), copies)
    weighted = batch.with_columns({"row_weights": Column.fixed(weights)})
    parts = [weighted.take(np.arange(len(rows))[:cut]), weighted.take(np.arange(len(rows))[cut:])]
    for plain, counted in zip(objectives(aggregation), objectives(aggregation, **WEIGHTED), strict=True):
        expected, _ = run(plain, [repeated])
        result, _ = run(counted, parts)
        assert torch.allclose(result, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("aggregation", "loss"), [("TokenMean", 8 / 5), ("SequenceMeanTokenMean", 7 / 4)])
def test_the_loss_that_is_reported_counts_them_too(aggregation, loss):
    # losses of tokens are -A: 1 1 | 2, and the second row counts three times
    # token mean (1 + 1 + 3·2) / (2 + 3); sequence mean (1 + 3·2) / (1 + 3)
    advantages = np.array([-1.0, -1.0, -2.0])
    batch = Batch.build(
        [0, 1],
        [0, 0],
        {
            "response_ids": Column.from_lengths(np.array([1, 2, 3]), [2, 1]),
            "response_mask": Column.from_lengths(np.ones(3, np.uint8), [2, 1]),
            "advantages": Column.from_lengths(advantages, [2, 1]),
            "row_weights": Column.fixed(np.array([1, 3])),
        },
    )
    spec = algorithm("PPO", loss={"aggregation": aggregation}, kl={"coefficient": 0.0}, **WEIGHTED)
    objective = policy_objective(spec, max_response_tokens=5, has_old_log_probs=False)
    _, (metrics,) = run(objective, [batch])
    assert metrics["loss/policy"].value == pytest.approx(loss)
