"""What an update makes of whole rows before they are cut: importance weights, rejected tokens, tokens held back."""

import math

import numpy as np
import pytest
import torch

from rljob_worker.algorithms import policy_objective
from rljob_worker.algorithms.advantages import no_reduce
from rljob_worker.algorithms.preparation import prepared, require_loss_columns, with_corrections
from rljob_worker.algorithms.tests.builders import Packed, algorithm, double, ints, judged, rows_of
from rljob_worker.batch import Batch, Column
from rljob_worker.errors import InvalidJob

LENGTHS = [2, 3]


def batch_of(mask=(1, 1, 1, 0, 1), **columns):
    ragged = {"response_ids": range(5), "response_mask": mask, "advantages": [1.0, 1.0, -1.0, 9.0, -1.0], **columns}
    return Batch.build([4, 5], [1, 1], {name: Column.from_lengths(np.array(v), LENGTHS) for name, v in ragged.items()})


def mismatched(**columns):
    """Ratios of training to rollout probabilities 1, 4 | 1, (observation), ¼."""
    ratios = np.array([1.0, 4.0, 1.0, 100.0, 0.25])
    return batch_of(old_log_probs=np.log(ratios) - 1.0, rollout_log_probs=np.full(5, -1.0), **columns)


def correcting(**correction):
    return algorithm("GRPO", kl={"coefficient": 0.0}, correction=correction)


def test_a_job_without_a_correction_keeps_its_rows_and_knows_how_far_they_are_off():
    batch = mismatched()
    rows, metrics = with_corrections(batch, algorithm("GRPO"))
    assert rows is batch
    # x = ln (1, 4, 1, ¼), the observation left out; probabilities e^-1 · (1, 4, 1, ¼), none above 1, against e^-1
    assert {name: scalar.value for name, scalar in metrics.items()} == pytest.approx(
        {
            "mismatch/k1": 0.0,
            "mismatch/k3": 2.25 / 4,
            "mismatch/ratio_max": 4.0,
            "mismatch/probs_diff": (1 - 1 / math.e + 0.75 / math.e) / 4,
            "mismatch/probs_diff_max": 1 - 1 / math.e,
        }
    )


def test_rows_that_were_cut_off_are_not_compared_where_they_are_not_learnt_from():
    _, metrics = with_corrections(mismatched(loss_mask=[1, 0, 1, 0, 1]), algorithm("GRPO", maskTruncated=True))
    assert metrics["mismatch/ratio_max"].value == pytest.approx(1.0)
    assert metrics["mismatch/k1"].value == pytest.approx(math.log(4) / 3)


@pytest.mark.parametrize("name", ["old_log_probs", "rollout_log_probs"])
def test_nothing_is_compared_before_both_are_there(name):
    batch = batch_of(**{name: np.zeros(5)})
    assert with_corrections(batch, algorithm("GRPO")) == (batch, {})


def test_weights_and_mask_reach_the_rows_and_the_mismatch_the_metrics():
    rows, metrics = with_corrections(mismatched(), correcting(method="MaskedImportance", lower=0.5, upper=2.0))
    assert rows["loss_mask"].values.tolist() == [1, 0, 1, 0, 0]
    assert rows["importance_weights"].values[[0, 2]].tolist() == pytest.approx([1.0, 1.0])
    assert rows["importance_weights"].lengths.tolist() == LENGTHS
    # x = ln (1, 4, 1, ¼): k1 = mean -x = 0; k3 = mean e^x - 1 - x = (4 + ¼ - 2) / 4
    assert metrics["mismatch/k1"].value == pytest.approx(0.0)
    assert metrics["mismatch/k3"].value == pytest.approx(2.25 / 4)
    assert metrics["mismatch/ratio_max"].value == pytest.approx(4.0)


def test_a_row_that_was_cut_off_stays_out():
    spec = algorithm("GRPO", maskTruncated=True, correction={"method": "TruncatedImportance"})
    rows, _ = with_corrections(mismatched(loss_mask=[1, 1, 0, 0, 0]), spec)
    assert rows["loss_mask"].values.tolist() == [1, 1, 0, 0, 0]


def test_importance_weights_multiply_the_policy_loss_and_nothing_else():
    # two tokens, weights 2 and ½, A = -1 each, ratio 1: policy loss (2 + ½) / 2; KL to π/2: k1 = ln 2 unweighted
    spec = algorithm("GRPO", kl={"coefficient": 1.0, "estimator": "K1"}, correction={"method": "TruncatedImportance"})
    objective = policy_objective(
        spec, max_response_tokens=4, has_old_log_probs=True, made=("importance_weights", "loss_mask")
    )
    log_probs = double(-1, -1).requires_grad_()
    columns = {
        "loss_mask": ints(1, 1),
        "advantages": double(-1, -1),
        "old_log_probs": double(-1, -1),
        "ref_log_probs": double(-1, -1) - math.log(2),
        "importance_weights": double(2, 0.5),
    }
    assert set(objective.columns) == set(columns)
    loss, metrics = judged(objective, Packed(log_probs, rows_of([2]), 1, columns), {"policy": 2.0, "kl": 2.0})
    loss.backward()
    assert loss.item() == pytest.approx(1.25 + math.log(2))
    # d/d log π of w·ρ is w, of k1 is 1, each over 2 tokens
    assert torch.allclose(log_probs.grad, double(3, 1.5) / 2)
    assert metrics["loss/policy"].value == pytest.approx(1.25)
    assert metrics["policy/ratio"].value == pytest.approx(1.0)


def test_a_loss_of_ones_own_cannot_read_a_number_per_row():
    loss = algorithm("GRPO", loss={"name": "m:f", "reads": ["truncated"]}).loss
    with pytest.raises(InvalidJob, match=r"m:f reads column 'truncated', which has one value per row"):
        require_loss_columns(batch_of().with_columns({"truncated": Column.fixed([True, False])}), loss)


def test_what_a_loss_prepares_reaches_it_on_every_token():
    # covariances (log π - mean)(A - mean) over the four actions: log π (0, -2 | 0, -2), A (1, 1 | -1, -1)
    # -> 1, -1 | -1, 1: the two of covariance 1 lie between 0 and 5; one of four tokens is held back
    batch = batch_of(old_log_probs=[0.0, -2.0, 0.0, 50.0, -2.0])
    spec = algorithm("ClipCov", loss={"covarianceFraction": 0.25, "covarianceLow": 0.0})
    rows = prepared(batch, spec, reduce=no_reduce, seed=3)
    held_back = rows["held_back"]
    assert held_back.lengths.tolist() == LENGTHS
    assert held_back.values.tolist() in ([True, False, False, False, False], [False, False, False, False, True])
    objective = policy_objective(spec, max_response_tokens=4, has_old_log_probs=True, made=("held_back",))
    assert "held_back" in objective.columns


def test_a_loss_of_single_tokens_prepares_nothing():
    batch = batch_of()
    assert prepared(batch, algorithm("GRPO"), reduce=no_reduce, seed=3) is batch


def test_a_rank_without_rows_prepares_as_well():
    empty = batch_of(old_log_probs=np.zeros(5)).take([])
    assert len(prepared(empty, algorithm("KLCov"), reduce=no_reduce, seed=3)["held_back"].values) == 0


def test_the_divergence_itself_comes_from_the_engine():
    spec = algorithm("GRPO", kl={"coefficient": 0.5, "estimator": "Full"})
    objective = policy_objective(spec, max_response_tokens=4, has_old_log_probs=False)
    assert "full_kl" in objective.outputs and "ref_log_probs" not in objective.columns
    full_kl = double(0.2, 7, 0.4).requires_grad_()
    columns = {"response_mask": ints(1, 0, 1), "advantages": double(0, 0, 0)}
    tokens = Packed(double(-1, -1, -1), rows_of([2, 1]), 2, columns, full_kl=full_kl)
    loss, metrics = judged(objective, tokens, {"policy": 2.0, "kl": 2.0})
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * 0.3)
    assert full_kl.grad.tolist() == [0.25, 0.0, 0.25]
    assert metrics["kl/reference"].value == pytest.approx(0.3)
    assert metrics["kl/reference_row"].value == pytest.approx(0.3)  # 0.2 and 0.4 in two rows
