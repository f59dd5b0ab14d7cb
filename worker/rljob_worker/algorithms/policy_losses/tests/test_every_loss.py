"""What holds for every policy loss with every aggregation, as an update runs them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.catalogue.algorithms import LOSSES
from rljob_worker.algorithms import AGGREGATIONS, POLICY_LOSSES, policy_objective
from rljob_worker.algorithms.advantages import no_reduce
from rljob_worker.algorithms.policy_losses import PolicyTokens
from rljob_worker.algorithms.preparation import prepared
from rljob_worker.algorithms.tests.builders import Policy, algorithm, double, ragged_batch, rows_of
from rljob_worker.batch import Batch

LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=10)
NAMES = sorted(LOSSES)
COVARIANCE = {"covarianceFraction": 0.3, "covarianceLow": 0.0, "covarianceHigh": 9.0}
every_loss = pytest.mark.parametrize("name", NAMES)
every_aggregation = pytest.mark.parametrize("aggregation", AGGREGATIONS.names())


def spec_of(name: str, aggregation: str = "TokenMean"):
    options = COVARIANCE if name in ("ClipCov", "KLCov") else {}
    return algorithm(loss={"name": name, "aggregation": aggregation, **options})


def objective_and_batch(name: str, aggregation: str, batch: Batch):
    spec = spec_of(name, aggregation)
    ready = prepared(batch, spec, reduce=no_reduce, seed=3)
    made = set(ready.columns) - set(batch.columns)
    return policy_objective(spec, max_response_tokens=5, has_old_log_probs=True, made=made), ready


def run(objective, micro_batches: list[Batch]) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient as an engine adds them up."""
    policy = Policy()
    counts = [objective.counts(part) for part in micro_batches]
    over_all = {name: sum(count[name] for count in counts) for name in counts[0]}
    losses = []
    for part in micro_batches:
        loss, _ = objective(policy.pack(part, objective.columns), over_all)
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum(), policy.gradient()


def assert_same(result, expected):
    for one, two in zip(result, expected, strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-10)


@every_loss
@every_aggregation
@settings(max_examples=2)
@given(lengths=LENGTHS, data=st.data(), seed=st.integers(0, 99))
def test_trap_02_no_loss_depends_on_micro_batches(name, aggregation, lengths, data, seed):
    masked = data.draw(st.sets(st.integers(0, 9), max_size=2))
    objective, batch = objective_and_batch(name, aggregation, ragged_batch(lengths, seed, masked_rows=masked))
    owner = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths))))
    parts = [batch.take(np.flatnonzero(owner == part)) for part in range(4)]
    assert_same(run(objective, parts), run(objective, [batch]))


@every_loss
@settings(max_examples=5)
@given(lengths=LENGTHS, data=st.data(), aggregation=st.sampled_from(AGGREGATIONS.names()))
def test_the_order_of_rows_does_not_matter_to_any_loss(name, lengths, data, aggregation):
    objective, batch = objective_and_batch(name, aggregation, ragged_batch(lengths))
    order = np.array(data.draw(st.permutations(range(len(lengths)))))
    columns = {name: column.take(order) for name, column in batch.columns.items()}
    shuffled = Batch.build(batch.row_ids, batch.group_ids, columns)
    assert_same(run(objective, [shuffled]), run(objective, [batch]))


@every_loss
@every_aggregation
def test_trap_24_padding_as_observations_changes_no_loss(name, aggregation):
    """Rows laid out to one width with masked tokens give what ragged rows give."""
    ragged = ragged_batch([3, 1, 5, 2])
    objective, batch = objective_and_batch(name, aggregation, ragged)
    padded = objective_and_batch(name, aggregation, _padded(ragged, 7))[1]
    if name == "ClipCov":  # which tokens are drawn depends on their place in the response, not on padding
        padded = padded.with_columns({"held_back": _padded(batch.select(["held_back"]), 7)["held_back"]})
    assert_same(run(objective, [padded]), run(objective, [batch]))


def _padded(batch: Batch, width: int) -> Batch:
    columns = dict(batch.columns)
    for name, column in batch.columns.items():
        if column.is_ragged:
            rows = [column.values[start:end] for start, end in zip(column.offsets, column.offsets[1:], strict=False)]
            padded = [np.concatenate([row, np.zeros(width - len(row), row.dtype)]) for row in rows]
            columns[name] = type(column).ragged(padded, column.dtype)
    return Batch.build(batch.row_ids, batch.group_ids, columns)


@every_loss
@every_aggregation
def test_trap_05_fully_masked_rows_change_no_loss_and_alone_give_zero(name, aggregation):
    batch = ragged_batch([3, 2, 4, 1], masked_rows=[1, 3])
    objective, ready = objective_and_batch(name, aggregation, batch)
    assert_same(run(objective, [ready]), run(objective, [ready.take([0, 2])]))
    objective, nothing = objective_and_batch(name, aggregation, ragged_batch([3, 2], masked_rows=[0, 1]))
    loss, gradient = run(objective, [nothing])
    assert loss == 0.0
    assert not gradient.any()


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_at_extreme_ratios(name, dtype):
    log_ratios = torch.tensor([-1000, -100, -20, 0, 20, 100, 1000] * 2, dtype=dtype)
    advantages = torch.tensor([1.5] * 7 + [-1.5] * 7, dtype=dtype)
    result, gradient = _token_losses(name, log_ratios, advantages, torch.zeros(14, dtype=dtype))
    assert result.dtype == dtype
    assert torch.isfinite(result).all()
    assert torch.isfinite(gradient).all()


@every_loss
@pytest.mark.parametrize("old_log_prob", [0.0, -1e-7, -1e-3, -40.0])
def test_finite_for_certain_and_impossible_tokens(name, old_log_prob):
    log_probs, old = double(0, -1e-9, -0.5, -60), torch.full((4,), old_log_prob, dtype=torch.float64)
    for advantage in (-1.0, 0.0, 1.0):
        result, gradient = _token_losses(name, log_probs, torch.full((4,), advantage, dtype=torch.float64), old)
        assert torch.isfinite(result).all()
        assert torch.isfinite(gradient).all()


@every_loss
def test_no_tokens_give_no_losses(name):
    result, gradient = _token_losses(name, double(), double(), double())
    assert result.tolist() == gradient.tolist() == []


@every_loss
def test_at_ratio_one_every_gradient_is_that_of_the_policy_gradient(name):
    log_probs, advantages = double(-1, -2, -0.5), double(2, 2, -3)
    _, gradient = _token_losses(name, log_probs, advantages, log_probs)
    assert torch.allclose(gradient, -advantages)


def _token_losses(name, log_probs, advantages, old) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of two and one tokens, as many as it takes."""
    lengths = ([2, 1] * len(log_probs))[: len(log_probs)]
    row = rows_of(lengths)[: len(log_probs)]
    leaf = log_probs.clone().requires_grad_()
    held_back = torch.zeros(len(log_probs), dtype=torch.bool)
    tokens = PolicyTokens(leaf, old, advantages, row, len(lengths), {"held_back": held_back})
    losses = POLICY_LOSSES[name](tokens, spec_of(name).loss).losses
    losses.sum().backward()
    assert leaf.grad is not None
    return losses.detach(), leaf.grad
