"""The objective does not know how rows were cut into micro-batches, nor in which order they came."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.algorithms import AGGREGATIONS, KL_ESTIMATORS, policy_objective, value_objective
from rljob_worker.algorithms.tests.builders import Policy, algorithm, judged, ragged_batch
from rljob_worker.batch import Batch
from rljob_worker.metrics.scalars import merge_all

LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=10)


def policy_terms(aggregation: str, estimator: str = "K3"):
    spec = algorithm(
        loss={"aggregation": aggregation, "entropyCoefficient": 0.05, "dualClip": 3.0},
        kl={"coefficient": 0.2, "estimator": estimator},
    )
    return policy_objective(spec, max_response_tokens=5, has_old_log_probs=True).reporting_mismatch()


def run(objective, micro_batches: list[Batch]):
    """What an engine does: one count over all rows, then a backward pass per micro-batch."""
    policy = Policy()
    counts = [objective.counts(part) for part in micro_batches]
    over_all = {name: sum(count[name] for count in counts) for name in counts[0]}
    losses, metrics = [], []
    for part in micro_batches:
        loss, measured = judged(objective, policy.pack(part, objective.columns), over_all)
        loss.backward()
        losses.append(loss.detach())
        metrics.append(measured)
    return torch.stack(losses).sum(), policy.gradient(), merge_all(metrics)


def assert_same(result, expected):
    assert torch.allclose(result[0], expected[0], rtol=0, atol=1e-10)
    assert torch.allclose(result[1], expected[1], rtol=0, atol=1e-10)
    assert {n: s.value for n, s in result[2].items()} == pytest.approx(
        {n: s.value for n, s in expected[2].items()}, abs=1e-10, nan_ok=True
    )


@settings(max_examples=30)
@given(lengths=LENGTHS, aggregation=st.sampled_from(AGGREGATIONS.names()), data=st.data(), seed=st.integers(0, 99))
def test_trap_2_the_policy_objective_does_not_depend_on_micro_batches(lengths, aggregation, data, seed):
    batch = ragged_batch(lengths, seed, masked_rows=data.draw(st.sets(st.integers(0, 9), max_size=2)))
    objective = policy_terms(aggregation, data.draw(st.sampled_from(KL_ESTIMATORS.names())))
    owner = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths))))
    parts = [batch.take(np.flatnonzero(owner == part)) for part in range(4)]
    assert_same(run(objective, parts), run(objective, [batch]))


@settings(max_examples=30)
@given(lengths=LENGTHS, cut=st.integers(0, 10), seed=st.integers(0, 99))
def test_trap_2_the_value_objective_does_not_depend_on_micro_batches(lengths, cut, seed):
    batch = ragged_batch(lengths, seed)
    objective = value_objective(algorithm("PPO"))
    rows = np.arange(len(lengths))
    assert_same(run(objective, [batch.take(rows[:cut]), batch.take(rows[cut:])]), run(objective, [batch]))


@settings(max_examples=30)
@given(lengths=LENGTHS, aggregation=st.sampled_from(AGGREGATIONS.names()), data=st.data())
def test_the_order_of_rows_does_not_matter(lengths, aggregation, data):
    batch = ragged_batch(lengths)
    order = np.array(data.draw(st.permutations(range(len(lengths)))))
    columns = {name: column.take(order) for name, column in batch.columns.items()}
    shuffled = Batch.build(batch.row_ids, batch.group_ids, columns)
    objective = policy_terms(aggregation)
    assert_same(run(objective, [shuffled]), run(objective, [batch]))


@pytest.mark.parametrize("aggregation", AGGREGATIONS.names())
def test_trap_4_an_empty_micro_batch_changes_nothing(aggregation):
    batch = ragged_batch([3, 1, 4])
    objective = policy_terms(aggregation)
    assert_same(run(objective, [batch.take([]), batch, batch.take([])]), run(objective, [batch]))


def test_trap_2_a_mean_of_means_would_be_seen_here():
    """Five tokens against one: unequal micro-batches tell a token mean from a mean of token means."""
    batch = ragged_batch([5, 1], seed=2)
    objective = policy_terms("TokenMean")
    whole = run(objective, [batch])[0]
    halves = [run(objective, [batch.take([row])])[0] for row in range(2)]
    assert abs(torch.stack(halves).mean() - whole) > 1e-3
