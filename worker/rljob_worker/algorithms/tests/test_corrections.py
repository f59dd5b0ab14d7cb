"""Corrections of the mismatch between rollout and training log-probs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.v1alpha1.algorithm import CorrectionSpec
from rljob_worker.algorithms.corrections import correct
from rljob_worker.algorithms.tests.builders import double, ints, rows_of
from rljob_worker.algorithms.tests.ranks import on_ranks

METHODS = ("TruncatedImportance", "MaskedImportance", "ICEPOP", "SequenceRejection")
LEVELS = ("Token", "Sequence", "SequenceGeometric")


def spec(method: str, level: str = "Token", lower: float = 0.5, upper: float = 2.0) -> CorrectionSpec:
    return CorrectionSpec.model_validate({"method": method, "level": level, "lower": lower, "upper": upper})


def run(ratios, lengths, correction, mask=None):
    """Log-ratios of the given ratios; rollout log-probs are -1."""
    rollout = torch.full((len(ratios),), -1.0, dtype=torch.float64)
    mask = torch.ones(len(ratios)) if mask is None else mask
    return correct(double(*ratios).log() - 1.0, rollout, mask, rows_of(lengths), len(lengths), correction)


def test_truncated_importance_by_hand():
    result, metrics = run([0.25, 1, 3], [3], spec("TruncatedImportance", lower=0.5, upper=2))
    assert torch.allclose(result.weights, double(0.5, 1, 2))
    assert result.keep.tolist() == [True, True, True]
    assert metrics["mismatch/fraction_truncated"].value == pytest.approx(2 / 3)
    assert metrics["mismatch/fraction_masked"].value == 0.0
    assert metrics["mismatch/ratio_max"].value == pytest.approx(3)
    # (3.5)² / (3 · (0.25 + 1 + 4)) = 12.25 / 15.75
    assert metrics["mismatch/effective_sample_size"].value == pytest.approx(12.25 / 15.75)


def test_masked_importance_takes_tokens_out_of_the_loss():
    result, metrics = run([0.25, 1, 3], [3], spec("MaskedImportance"))
    assert result.keep.tolist() == [False, True, False]
    assert result.weights[1] == 1.0
    assert metrics["mismatch/fraction_masked"].value == pytest.approx(2 / 3)


def test_icepop_gives_weight_zero_and_keeps_the_token_in_the_denominator():
    result, metrics = run([0.25, 1.5, 3], [3], spec("ICEPOP"))
    assert torch.allclose(result.weights, double(0, 1.5, 0))
    assert result.keep.tolist() == [True, True, True]
    assert metrics["mismatch/fraction_masked"].value == pytest.approx(2 / 3)


def test_icepop_judges_tokens_one_by_one_unless_configured_otherwise():
    # product and geometric mean of the row are 1, and its tokens are all outside
    result, _ = run([10, 0.1], [2], CorrectionSpec.model_validate({"method": "ICEPOP"}))
    assert result.weights.tolist() == [0, 0]


@pytest.mark.parametrize("bounds", [(1.0, 2.0), (0.5, 1.0)], ids=["lower", "upper"])
@pytest.mark.parametrize("method", METHODS)
def test_a_ratio_on_a_bound_is_inside(method, bounds):
    # two tokens with w = 1, which is exact
    result, metrics = run([1, 1], [2], spec(method, "Token", *bounds))
    assert result.weights.tolist() == [1, 1]
    assert result.keep.tolist() == [True, True]
    assert metrics["mismatch/fraction_truncated"].value == metrics["mismatch/fraction_masked"].value == 0.0


def test_trap_19_levels_by_hand():
    # row 0: ρ = (4, 1/2): product 2, geometric mean √2; row 1: 1/8
    ratios, lengths = [4, 0.5, 0.125], [2, 1]
    wide = {"lower": 0.0, "upper": 100.0}
    for level, expected in (
        ("Token", double(4, 0.5, 0.125)),
        ("Sequence", double(2, 2, 0.125)),
        ("SequenceGeometric", double(2**0.5, 2**0.5, 0.125)),
    ):
        result, _ = run(ratios, lengths, spec("TruncatedImportance", level, **wide))
        assert torch.allclose(result.weights, expected)


def test_sequence_rejection_drops_whole_rows_and_weighs_nothing():
    result, _ = run([4, 0.5, 0.125, 1], [2, 1, 1], spec("SequenceRejection", "SequenceGeometric"))
    assert result.keep.tolist() == [True, True, False, True]
    assert result.weights.tolist() == [1, 1, 1, 1]
    # by its tokens' own ratios the first row goes too
    result, _ = run([4, 0.5, 0.125, 1], [2, 1, 1], spec("SequenceRejection", "Token"))
    assert result.keep.tolist() == [False, False, False, True]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("level", LEVELS)
def test_trap_28_observations_have_log_ratio_zero_whatever_they_hold(method, level):
    mask = ints(1, 0, 1, 0)
    clean, metrics = run([1.5, 1, 0.75, 1], [4], spec(method, level), mask)
    dirty, same = run([1.5, 1e9, 0.75, math.nan], [4], spec(method, level), mask)
    assert torch.equal(clean.weights, dirty.weights)
    assert torch.equal(clean.keep, dirty.keep)
    assert {name: scalar.value for name, scalar in metrics.items()} == {n: s.value for n, s in same.items()}
    assert clean.weights[ints(1, 3)].tolist() == [0, 0]
    assert clean.keep[ints(1, 3)].tolist() == [False, False]


@pytest.mark.parametrize("method", METHODS)
def test_trap_19_weights_are_detached(method):
    old = double(-1, -2).requires_grad_()
    result, _ = correct(old, double(-1.1, -2.2), ints(1, 1), rows_of([2]), 1, spec(method))
    assert not result.weights.requires_grad


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_for_extreme_ratios_masked_rows_and_nothing(method, level, dtype):
    old = torch.tensor([-20, 20, 1000, -1000, 0], dtype=dtype)
    row, mask = rows_of([2, 2, 1]), ints(1, 1, 1, 1, 0)
    result, metrics = correct(old, torch.zeros(5, dtype=dtype), mask, row, 3, spec(method, level))
    assert result.weights.dtype == dtype
    assert torch.isfinite(result.weights).all()
    assert all(math.isfinite(scalar.value) for scalar in metrics.values())
    empty, _ = correct(double(), double(), ints(), ints(), 0, spec(method, level))
    assert empty.weights.tolist() == empty.keep.tolist() == []


def test_equal_engines_change_nothing():
    result, metrics = run([1, 1, 1], [2, 1], spec("TruncatedImportance"))
    assert result.weights.tolist() == [1, 1, 1]
    assert metrics["mismatch/k1"].value == metrics["mismatch/k3"].value == 0.0
    assert metrics["mismatch/effective_sample_size"].value == 1.0


def test_k1_and_k3_by_hand():
    # x = ln(old / rollout) = ln 2: k1 = -ln 2, k3 = 2 - 1 - ln 2
    _, metrics = run([2], [1], spec("TruncatedImportance"))
    assert metrics["mismatch/k1"].value == pytest.approx(-math.log(2))
    assert metrics["mismatch/k3"].value == pytest.approx(1 - math.log(2))


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    method=st.sampled_from(METHODS),
    level=st.sampled_from(LEVELS),
    seed=st.integers(0, 1000),
)
def test_ranks_see_the_same_weights_and_effective_sample_size(lengths, method, level, seed):
    generator = torch.Generator().manual_seed(seed)
    row = rows_of(lengths)
    old, rollout = torch.randn(2, len(row), generator=generator, dtype=torch.float64)
    mask = torch.randint(0, 2, (len(row),), generator=generator)
    correction = spec(method, level)
    whole, metrics = correct(old, rollout, mask, row, len(lengths), correction)
    owner = torch.randint(0, 2, (len(lengths),), generator=generator)

    def work(rank: int, reduce):
        mine = owner[row] == rank
        rows = (owner == rank).long().cumsum(0) - 1
        part = (old[mine], rollout[mine], mask[mine], rows[row[mine]])
        return correct(*part, int((owner == rank).sum()), correction, reduce)

    for rank, (result, measured) in enumerate(on_ranks(2, work)):
        mine = owner[row] == rank
        assert torch.allclose(result.weights, whole.weights[mine], rtol=0, atol=1e-12)
        assert torch.equal(result.keep, whole.keep[mine])
        name = "mismatch/effective_sample_size"
        assert measured[name].value == pytest.approx(metrics[name].value, abs=1e-12)
