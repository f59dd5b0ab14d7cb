"""Scalars, merged over ranks."""

import math

import numpy as np
import pytest

from rljob_worker.metrics.scalars import Scalar, maximum, mean, mean_of, means_by_source, merge_all, total


def test_means_merge_by_sum_and_count():
    # (6 + 2) / (3 + 1), not (2 + 2) / 2 by accident: the second mean is 2 / 1
    assert Scalar.merge([mean(6.0, 3), mean(2.0, 1)]).value == 2.0
    assert Scalar.merge([mean(6.0, 3), mean(10.0, 1)]).value == 4.0


def test_a_mean_of_numbers_does_not_depend_on_which_ranks_have_which():
    # in float32 2 ** 24 + 1 is 2 ** 24: a rank that adds the ones to it one by one loses both, one that has them not
    values = np.array([2**24, 1, 1], np.float32)
    assert mean_of(values) == mean(2**24 + 2, 3)
    ranks = Scalar.merge([mean_of(values[:1]), mean_of(values[1:]), mean_of(values[:0])])
    assert ranks.value == mean_of(values).value == (2**24 + 2) / 3
    assert mean_of(np.array([True, False])).value == 0.5


def test_a_rank_without_rows_does_not_count():
    assert Scalar.merge([mean(0.0, 0), mean(3.0, 2)]).value == 1.5
    assert math.isnan(mean(0.0, 0).value)


def test_totals_add_and_maxima_win():
    merged = merge_all([{"bytes": total(3), "ratio": maximum(1.5)}, {"bytes": total(4), "ratio": maximum(1.25)}])
    assert (merged["bytes"].value, merged["ratio"].value) == (7.0, 1.5)


def test_one_name_has_one_kind():
    with pytest.raises(AssertionError, match="several kinds"):
        Scalar.merge([mean(1), total(1)])


def test_infinities_of_both_signs_and_sums_beyond_all_numbers_are_merged_in_any_order() -> None:
    nan, inf = math.nan, math.inf
    for values in ([inf, -inf, 1.0], [-inf, 1.0, inf], [nan, 1.0], [1.0, nan]):
        merged = Scalar.merge([mean(value) for value in values])
        assert math.isnan(merged.value)
        if nan in values:
            assert math.isnan(Scalar.merge([maximum(value) for value in values]).value)
    assert Scalar.merge([total(1.7e308), total(1.7e308)]).value == inf
    assert Scalar.merge([total(-1.7e308), total(-1.7e308)]).value == -inf


def test_each_data_set_has_a_mean_of_its_own():
    # a: 1 + 0 + 1 of 3; b: 0.5 of 1
    means = means_by_source("accuracy", np.array([1.0, 0.5, 0.0, 1.0]), ["a", "b", "a", "a"])
    assert means == {"accuracy/a": mean(2.0, 3), "accuracy/b": mean(0.5, 1)}


def test_no_rows_have_no_data_set():
    assert means_by_source("accuracy", np.zeros(0), []) == {}
