"""How many rows a trajectory has changes nothing: cut into rows with the same actions it has the same advantages, the
same loss and the same gradient, whatever the estimator, the loss and the aggregation.

Advantages are all that a loss knows of an estimator, so that each is cut by itself.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.catalogue.algorithms import CORRECTIONS, ESTIMATORS, LOSSES, needs_whole_trajectories
from rljob_worker.algorithms import AGGREGATIONS, KL_ESTIMATORS, estimate_advantages, policy_objective, value_objective
from rljob_worker.algorithms.advantages import no_reduce
from rljob_worker.algorithms.preparation import prepared, with_corrections, with_trajectory_columns
from rljob_worker.algorithms.tests.builders import Policy, algorithm, judged, ragged_batch
from rljob_worker.batch import Batch, Column
from rljob_worker.metrics.scalars import merge_all

BOUND = 3
"""Rows of a trajectory."""
LENGTHS = st.lists(st.integers(0, 7), min_size=1, max_size=6)
JUNK = 7
"""What a column has at a token that only a cut trajectory has: 7 is not a number of the others, and not an action."""


def whole_trajectories(lengths, seed=0):
    """One row each, two to a group."""
    batch = ragged_batch(lengths, seed)
    random, total = np.random.default_rng(seed), sum(lengths)
    ids = np.arange(len(lengths))
    ragged = {"turn_ids": np.sort(random.integers(0, 3, total)), "agent_ids": random.integers(0, 2, total)}
    columns = {name: Column.from_lengths(values, lengths) for name, values in ragged.items()}
    columns["baseline_rewards"] = Column.fixed(random.normal(size=len(lengths)))
    columns["row_weights"] = Column.fixed(random.integers(0, 3, len(lengths)))
    return Batch.build(ids * BOUND, ids // 2, {**batch.columns, **columns})


def cut(batch: Batch, cuts: list[list[int]]) -> Batch:
    """The trajectories of `batch`, each with one more row per cut; every later row begins with a token that is no
    action."""
    lengths = batch["response_ids"].lengths
    ends = [[*sorted(min(at, length) for at in of_one), length] for of_one, length in zip(cuts, lengths, strict=True)]
    trajectory = np.repeat(np.arange(len(batch)), [len(end) for end in ends])
    row_ids = np.concatenate([row_id + np.arange(len(item)) for row_id, item in zip(batch.row_ids, ends, strict=True)])
    columns = {}
    for name, column in batch.columns.items():
        if not column.is_ragged:
            columns[name] = column.take(trajectory)
            continue
        rows = [part for run, item in zip(column.to_list(), ends, strict=True) for part in np.split(run, item[:-1])]
        begun = row_ids % BOUND > 0
        junk = 0 if name in ("response_mask", "response_ids", "agent_ids") else JUNK
        rows = [np.append(junk, part) if again else part for again, part in zip(begun, rows, strict=True)]
        columns[name] = Column.ragged(rows, column.dtype)
    return Batch.build(row_ids, batch.group_ids[trajectory], columns)


def drawn(data, lengths):
    number = len(lengths)
    return data.draw(st.lists(st.lists(st.integers(0, 7), max_size=BOUND - 1), min_size=number, max_size=number))


def at_actions(batch, values):
    """Values of actions; there are none at observations."""
    is_action = torch.from_numpy(batch["response_mask"].values).bool()
    assert not values[~is_action].any()
    return values[is_action]


def specs_of(estimator):
    options = [{"normalizeStd": False}] if "normalize_std" in ESTIMATORS[estimator].options else [{}]
    options += [{"weighting": name} for name in ("ClipFilter", "Uniform")] * (estimator == "CPGD")
    kl = {"placement": "Reward", "coefficient": 0.1, "estimator": "K1"}
    for option in options:
        fields = {"advantage": {"estimator": estimator, "whiten": True, **option}, "groupSize": 2}
        yield algorithm("PPO" if ESTIMATORS[estimator].has_critic else "GRPO", **fields, kl=kl)


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
@settings(max_examples=8)
@given(lengths=LENGTHS, data=st.data(), seed=st.integers(0, 99))
def test_no_estimator_sees_how_a_trajectory_was_cut(estimator, lengths, data, seed):
    batch = whole_trajectories(lengths, seed)
    rows = cut(batch, drawn(data, lengths))
    for spec in specs_of(estimator):
        expected, reported = estimate_advantages(batch, spec, max_response_tokens=7, rows_per_trajectory=BOUND)
        result, metrics = estimate_advantages(rows, spec, max_response_tokens=7, rows_per_trajectory=BOUND)
        assert torch.equal(at_actions(rows, result.advantages), at_actions(batch, expected.advantages))
        if expected.returns is not None:
            assert torch.equal(at_actions(rows, result.returns), at_actions(batch, expected.returns))
        assert {name: item.value for name, item in metrics.items()} == pytest.approx(
            {name: item.value for name, item in reported.items()}, abs=1e-12, nan_ok=True
        )


def spec_of(loss, aggregation, kl="K3Weighted", **fields):
    options = {"covarianceFraction": 0.3, "covarianceLow": 0.0, "covarianceHigh": 9.0}
    options = options if loss in ("ClipCov", "KLCov") else {}
    chosen = {"name": loss, "aggregation": aggregation, "entropyCoefficient": 0.05, **options}
    return algorithm(loss=chosen, kl={"coefficient": 0.2, "estimator": kl}, groupSize=2, **fields)


def run(spec, batch, owner_of):
    """Loss, gradient and metrics of an update whose micro-batches are the rows of one owner each."""
    rows, mismatch = with_corrections(batch, spec, rows_per_trajectory=BOUND)
    rows = with_trajectory_columns(rows, spec, BOUND)
    rows = prepared(rows, spec, reduce=no_reduce, seed=3, rows_per_trajectory=BOUND)
    made = set(rows.columns) - set(batch.columns)
    objective = policy_objective(spec, max_response_tokens=7, has_old_log_probs=True, made=made)
    owner = owner_of(rows, spec)
    policy, counts, result = Policy(), objective.counts(rows), []
    for item in np.unique(owner):
        part = rows.take(np.flatnonzero(owner == item))
        result.append(judged(objective, policy.pack(part, objective.columns), counts))
    torch.stack([loss for loss, _ in result]).sum().backward()
    metrics = {name: item.value for name, item in merge_all([item for _, item in result]).items()}
    loss = sum(loss.item() for loss, _ in result)
    return loss, policy.gradient(), metrics | {name: item.value for name, item in mismatch.items()}


def one_owner(rows, spec):
    return np.zeros(len(rows), np.int64)


def two_owners(rows, spec):
    """Neighbours apart, and rows of one trajectory too where the loss does not need them together."""
    return (rows.row_ids // BOUND if needs_whole_trajectories(spec.loss.name) else np.arange(len(rows))) % 2


def assert_same(result, expected):
    assert result[0] == pytest.approx(expected[0], abs=1e-12)
    assert torch.allclose(result[1], expected[1], rtol=0, atol=1e-12)
    assert result[2] == pytest.approx(expected[2], abs=1e-12, nan_ok=True)


CORRECTED = st.one_of(
    st.just({}),
    st.builds(
        lambda method, level: {"correction": {"method": method, "level": "Token" if method == "ICEPOP" else level}},
        st.sampled_from(sorted(CORRECTIONS)),
        st.sampled_from(["Token", "Sequence", "SequenceGeometric"]),
    ),
)
FIELDS = st.tuples(CORRECTED, st.sampled_from([{}, {"sampling": {"resampling": {"method": "PFPPO"}}}]))


@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("aggregation", AGGREGATIONS.names())
@settings(max_examples=2)
@given(lengths=LENGTHS, data=st.data(), seed=st.integers(0, 99), fields=FIELDS)
def test_no_loss_sees_how_a_trajectory_was_cut(loss, aggregation, lengths, data, seed, fields):
    spec = spec_of(loss, aggregation, **fields[0], **fields[1])
    batch = whole_trajectories(lengths, seed)
    expected = run(spec, batch, one_owner)
    rows = cut(batch, drawn(data, lengths))
    assert_same(run(spec, rows, one_owner), expected)
    assert_same(run(spec, rows, two_owners), expected)


@pytest.mark.parametrize("kl", sorted({*KL_ESTIMATORS.names()} - {"Full"}))  # of whole distributions, not of actions
@settings(max_examples=4)
@given(lengths=LENGTHS, data=st.data(), seed=st.integers(0, 99))
def test_no_kl_estimator_sees_how_a_trajectory_was_cut(kl, lengths, data, seed):
    batch, spec = whole_trajectories(lengths, seed), spec_of("PPOClip", "SequenceMeanTokenSum", kl)
    assert_same(run(spec, cut(batch, drawn(data, lengths)), two_owners), run(spec, batch, one_owner))


@settings(max_examples=20)
@given(lengths=LENGTHS, data=st.data(), seed=st.integers(0, 99))
def test_no_critic_sees_how_a_trajectory_was_cut(lengths, data, seed):
    batch = whole_trajectories(lengths, seed)
    rows, objective = cut(batch, drawn(data, lengths)), value_objective(algorithm("PPO"))
    result = []
    for item in (batch, rows):
        policy = Policy()
        loss, _ = objective(policy.pack(item, objective.columns), objective.counts(item))
        loss.backward()
        result.append((loss.item(), policy.gradient(), {}))
    assert_same(result[1], result[0])


def test_a_trajectory_of_three_rows_counts_once_in_its_group():
    # rewards 1 and 0 have the mean 1/2; with the first counted three times it would be 3/4
    batch = Batch.build(
        [0, 1, 2, 3],
        [0, 0, 0, 0],
        {
            "rewards": Column.fixed(np.array([1.0, 1.0, 1.0, 0.0])),
            "response_mask": Column.from_lengths(np.ones(4, np.uint8), [1, 1, 1, 1]),
        },
    )
    spec = algorithm(advantage={"normalizeStd": False})
    result, metrics = estimate_advantages(batch, spec, max_response_tokens=4, rows_per_trajectory=3)
    assert result.advantages.tolist() == [0.5, 0.5, 0.5, -0.5]
    assert metrics["reward/zero_variance_groups"].value == 0.0


def test_rows_know_of_their_trajectory_only_where_it_may_have_several():
    # two actions of four tokens in the rows of the first trajectory, one in the second
    columns = {"response_mask": Column.from_lengths(np.array([1, 0, 0, 1, 1], np.uint8), [2, 2, 1])}
    batch = Batch.build([0, 1, 3], [0, 0, 0], columns)
    assert with_trajectory_columns(batch, algorithm(), 1) is batch
    reported = with_trajectory_columns(batch, algorithm(), 3)
    assert reported["trajectory_tokens"].values.tolist() == [2, 2, 1]
    assert "trajectory_id" not in reported
    of_sequences = with_trajectory_columns(batch, algorithm(loss={"name": "GSPO"}), 3)
    assert of_sequences["trajectory_id"].values.tolist() == [0, 0, 1]
