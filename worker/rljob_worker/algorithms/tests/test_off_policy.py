"""Rows of older weights: decoupled PPO, corrections of stale tokens alone, and how far tokens of each age are off."""

import math

import numpy as np
import pytest
import torch

from rljob_api.catalogue.algorithms import LOSSES
from rljob_worker.algorithms import policy_objective
from rljob_worker.algorithms.advantages import no_reduce
from rljob_worker.algorithms.masking import tensor_of
from rljob_worker.algorithms.mismatch import TokenAges
from rljob_worker.algorithms.preparation import prepared, with_corrections
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

LENGTHS = [2, 3]
AGES = TokenAges(newest=7, oldest=2)
CORRECTIONS = [
    {"method": method, "level": level, "staleOnly": stale_only}
    for method, levels in (
        ("TruncatedImportance", ("Token", "Sequence", "SequenceGeometric")),
        ("MaskedImportance", ("Token", "Sequence", "SequenceGeometric")),
        ("ICEPOP", ("Token",)),
        ("SequenceRejection", ("Token", "Sequence", "SequenceGeometric")),
    )
    for level in levels
    for stale_only in (False, True)
]


def five_tokens(ratios, versions=(7, 7, 7, 7, 7)) -> Batch:
    """Two rows with an observation, the fourth token. ratios: of old to rollout probabilities; the latter are e^-1."""
    columns = {
        "response_ids": range(5),
        "response_mask": [1, 1, 1, 0, 1],
        "advantages": [2.0, 1.0, 1.0, 9.0, -1.0],
        "old_log_probs": np.log(ratios) - 1.0,
        "rollout_log_probs": np.full(5, -1.0),
        "token_versions": np.array(versions, np.int64),
    }
    ragged = {name: Column.from_lengths(np.array(values), LENGTHS) for name, values in columns.items()}
    return Batch.build([4, 5], [1, 1], ragged)


def correcting(name: str = "GRPO", **correction):
    return algorithm(name, kl={"coefficient": 0.0}, correction=correction)


def objective_of(spec, rows: Batch, batch: Batch):
    made = set(rows.columns) - set(batch.columns)
    return policy_objective(spec, max_response_tokens=8, has_old_log_probs=True, made=made)


@pytest.mark.parametrize(
    ("correction", "loss", "gradient"),
    [
        # -(1.2 + 2.2 + 0 - 0.8) / 4: what is above the cap weighs nothing, and is counted
        ({"method": "ICEPOP", "lower": 0, "upper": 5}, -2.6 / 4, [0, -2.2 / 4, 0, 0, 0]),
        # -(1.2 + 2.2 + 5 · 1 - 0.8) / 4: it has the cap
        ({"method": "TruncatedImportance", "upper": 5}, -7.6 / 4, [0, -2.2 / 4, -5 / 4, 0, 0]),
        # -(1.2 + 2.2 - 0.8) / 3: it is not counted either
        ({"method": "MaskedImportance", "lower": 0, "upper": 5}, -2.6 / 3, [0, -2.2 / 3, 0, 0, 0]),
    ],
    ids=["capped", "truncated", "masked"],
)
def test_decoupled_ppo_by_hand(correction, loss, gradient):
    """w · min(r·A, clip(r, 0.8, 1.2)·A), with w = π_old / μ and r = π / π_old:

    w    ½    2    8  (obs)   1
    r   1.5  1.1   1  (obs)  0.5
    A    2    1    1  (obs)  -1
        2.4  1.1   1         -0.8   min(...): the first and the last are clipped, and have no gradient
    """
    spec, batch = correcting(**correction), five_tokens([0.5, 2, 8, 77, 1])
    rows, _ = with_corrections(batch, spec)
    objective = objective_of(spec, rows, batch)
    log_probs = (tensor_of(rows["old_log_probs"]) + double(1.5, 1.1, 1, 1e9, 0.5).log()).requires_grad_()
    columns = {name: tensor_of(rows[name]) for name in objective.columns}
    result, _ = objective(Packed(log_probs, rows_of(LENGTHS), 2, columns), objective.counts(rows))
    result.backward()
    assert result.item() == pytest.approx(loss, abs=1e-12)
    assert torch.allclose(log_probs.grad, double(*gradient), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("level", "weights"),
    [
        ("Token", [1, 4, 0.25, 0, 1]),
        # of the first row 4, of the second ¼: tokens of version 7 have the ratio 1
        ("Sequence", [4, 4, 0.25, 0, 0.25]),
        ("SequenceGeometric", [2, 2, 0.5, 0, 0.5]),
    ],
)
def test_tokens_of_the_newest_weights_have_the_ratio_one(level, weights):
    batch = five_tokens([3, 4, 0.25, 77, 0.1], versions=[7, 6, 3, 0, 7])
    spec = correcting(method="TruncatedImportance", level=level, upper=100, staleOnly=True)
    rows, metrics = with_corrections(batch, spec, ages=AGES)
    assert rows["importance_weights"].values.tolist() == pytest.approx(weights)
    # what was measured is of all tokens all the same: -(ln 3 + ln 4 + ln ¼ + ln 0.1) / 4
    assert metrics["mismatch/k1"].value == pytest.approx(-math.log(0.3) / 4)


def test_only_stale_tokens_are_left_out():
    batch = five_tokens([3, 4, 0.25, 77, 0.1], versions=[7, 6, 3, 0, 7])
    spec = correcting(method="MaskedImportance", lower=0.2, upper=2, staleOnly=True)
    rows, _ = with_corrections(batch, spec, ages=AGES)
    assert rows["loss_mask"].values.tolist() == [1, 0, 1, 0, 1]


def loss_and_gradient(batch: Batch, spec):
    """What an update makes of the rows in one mini-batch."""
    rows, _ = with_corrections(batch, spec, ages=AGES)
    rows = prepared(rows, spec, reduce=no_reduce, seed=3)
    objective, policy = objective_of(spec, rows, batch), Policy()
    loss, _ = objective(policy.pack(rows, objective.columns), objective.counts(rows))
    loss.backward()
    return loss.detach(), policy.gradient()


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_of_the_old_policy_are_learnt_from_as_without_a_correction(loss):
    batch = ragged_batch([4, 0, 5, 3], seed=2, masked_rows=[3])
    lengths = batch["response_ids"].lengths
    versions = Column.from_lengths(np.full(12, AGES.newest), lengths)
    on_policy = batch.with_columns({"rollout_log_probs": batch["old_log_probs"], "token_versions": versions})
    plain = algorithm("GRPO", kl={"coefficient": 0.0}, loss={"name": loss})
    expected = loss_and_gradient(on_policy, plain)
    assert expected[1].any()
    for correction in CORRECTIONS:
        spec = algorithm("GRPO", kl={"coefficient": 0.0}, loss={"name": loss}, correction=correction)
        # other rollout log-probs of the newest weights are rounding, which staleOnly leaves alone
        rounded = batch.with_columns({"token_versions": versions})
        for rows in (on_policy, rounded) if correction["staleOnly"] else (on_policy,):
            result = loss_and_gradient(rows, spec)
            assert result[0].item() == pytest.approx(expected[0].item(), rel=0, abs=1e-12), correction
            assert torch.allclose(result[1], expected[1], rtol=0, atol=1e-12), correction


def test_older_tokens_than_the_oldest_age_count_as_that():
    assert AGES.of(ints(7, 6, 5, 4, 0)).tolist() == [0, 1, 2, 2, 2]


BY_AGE = {
    # age 0: ratios 2 and ½; age 2: ¼ of the row's version 5 and 4 of version 0
    "mismatch/ratio_mean/age_0": (2 + 0.5) / 2,
    "mismatch/ratio_mean/age_2": (0.25 + 4) / 2,
    # e^x - 1 - x, the logarithms of which add up to 0
    "mismatch/k3/age_0": (2 + 0.5 - 2) / 2,
    "mismatch/k3/age_2": (0.25 + 4 - 2) / 2,
}


@pytest.mark.parametrize("correction", [None, {"method": "SequenceRejection"}])
def test_the_mismatch_of_each_age_by_hand(correction):
    batch = five_tokens([2, 0.25, 4, 77, 0.5], versions=[7, 5, 0, 6, 7])
    spec = algorithm("GRPO", correction=correction)
    _, metrics = with_corrections(batch, spec, ages=AGES)
    by_age = {name: scalar.value for name, scalar in metrics.items() if "/age_" in name}
    assert by_age == pytest.approx(BY_AGE)
    _, metrics = with_corrections(batch, spec)
    assert not any("/age_" in name for name in metrics)


def test_an_objective_tells_the_mismatch_of_each_age():
    batch = five_tokens([2, 0.25, 4, 77, 0.5], versions=[7, 5, 0, 6, 7])
    plain = policy_objective(algorithm("GRPO", kl={"coefficient": 0.0}), max_response_tokens=8, has_old_log_probs=False)
    objective = plain.reporting_mismatch(AGES)
    assert objective.columns == (*plain.columns, "rollout_log_probs", "token_versions")
    columns = {name: tensor_of(batch[name]) for name in objective.columns}
    tokens = Packed(tensor_of(batch["old_log_probs"]), rows_of(LENGTHS), 2, columns)
    _, metrics = judged(objective, tokens, objective.counts(batch))
    assert {name: scalar.value for name, scalar in metrics.items() if "/age_" in name} == pytest.approx(BY_AGE)
