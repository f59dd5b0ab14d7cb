"""Statistics of segments of a packed batch."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.algorithms.segments import (
    discounted_suffix_sum,
    is_last,
    row_chunks,
    run_of,
    segment_count,
    segment_max,
    segment_mean,
    segment_sum,
)
from rljob_worker.algorithms.tests.builders import double, ints, rows_of

SEGMENT = ints(0, 0, 2, 2)
VALUES = double(1, 2, 3, 4)


def test_statistics_of_runs_with_an_empty_one_between():
    assert segment_count(SEGMENT, 3).tolist() == [2, 0, 2]
    assert segment_sum(VALUES, SEGMENT, 3).tolist() == [3, 0, 7]
    assert segment_mean(VALUES, SEGMENT, 3).tolist() == [1.5, 0, 3.5]
    assert segment_max(VALUES, SEGMENT, 3).tolist() == [2, -torch.inf, 4]


def test_runs_of_equal_values_are_numbered_and_a_value_may_come_again():
    assert run_of(ints(7, 7, 3, 7)).tolist() == [0, 0, 1, 2]
    assert run_of(ints()).tolist() == []


def test_segments_need_not_be_sorted():
    assert segment_sum(VALUES, ints(1, 0, 1, 0), 2).tolist() == [6, 4]


def test_statistics_of_nothing():
    none = double()
    assert segment_sum(none, ints(), 2).tolist() == [0, 0]
    assert segment_mean(none, ints(), 2).tolist() == [0, 0]
    assert segment_sum(none, ints(), 0).tolist() == []


def test_the_gradient_of_a_mean_is_one_over_the_count():
    values = VALUES.clone().requires_grad_()
    segment_mean(values, ints(0, 0, 0, 1), 2)[0].backward()
    assert torch.allclose(values.grad, double(1 / 3, 1 / 3, 1 / 3, 0))


def test_last_tokens():
    assert is_last(ints(0, 0, 2, 3)).tolist() == [False, True, True, True]
    assert is_last(ints()).tolist() == []


def test_suffix_sums_stop_at_row_ends():
    # discount 0.5, row of three: 1 + 0.5·(2 + 0.5·4) = 3,  2 + 0.5·4 = 4,  4;   row of one: 8
    sums = discounted_suffix_sum(double(1, 2, 4, 8), ints(3, 0, 1), 0.5)
    assert sums.tolist() == [3, 4, 4, 8]


def test_discount_zero_keeps_values_and_one_adds_them_all():
    assert discounted_suffix_sum(double(1, 2, 4), ints(3), 0.0).tolist() == [1, 2, 4]
    assert discounted_suffix_sum(double(1, 2, 4), ints(3), 1.0).tolist() == [7, 6, 4]


def test_suffix_sums_of_nothing():
    assert discounted_suffix_sum(double(), ints(0, 0), 0.9).tolist() == []
    assert discounted_suffix_sum(double(), ints(), 0.9).tolist() == []


def _by_loop(values: list[float], lengths: list[int], discount: float) -> list[float]:
    sums, start = [0.0] * len(values), 0
    for length in lengths:
        running = 0.0
        for t in reversed(range(start, start + length)):
            running = sums[t] = values[t] + discount * running
        start += length
    return sums


@given(
    # around one block of 64, around a block of blocks (4096), and above
    lengths=st.lists(st.one_of(st.integers(0, 5), st.sampled_from([63, 64, 65, 129, 4095, 4097, 4200])), max_size=4),
    discount=st.sampled_from([0.0, 0.3, 0.95, 0.9999, 1.0]),
    seed=st.integers(0, 100),
)
def test_suffix_sums_equal_the_loop(lengths, discount, seed):
    values = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = double(*_by_loop(values.tolist(), lengths, discount))
    result = discounted_suffix_sum(values, torch.tensor(lengths, dtype=torch.int64), discount)
    assert torch.allclose(result, expected, rtol=0, atol=1e-9)


def test_suffix_sums_of_float32_are_as_good_as_float64():
    values = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    exact = discounted_suffix_sum(values.double(), ints(5000), 1.0)
    assert torch.equal(discounted_suffix_sum(values, ints(5000), 1.0), exact.float())


def test_suffix_sums_are_differentiable():
    values = double(1, 2, 4).requires_grad_()
    discounted_suffix_sum(values, ints(2, 1), 0.5).sum().backward()
    assert values.grad.tolist() == [1, 1.5, 1]  # the second token counts in its own sum and half in the first


def test_chunks_cover_all_rows_in_order():
    # 3 rows of 40,000 tokens: one row fits 65,536 tokens
    assert row_chunks(ints(40_000, 40_000, 40_000), 120_000) == [
        (slice(0, 1), slice(0, 40_000)),
        (slice(1, 2), slice(40_000, 80_000)),
        (slice(2, 3), slice(80_000, 120_000)),
    ]
    assert row_chunks(ints(0, 2), 2) == [(slice(0, 2), slice(0, 2))]
    assert row_chunks(ints(), 0) == []


def test_rows_of_is_what_it_says():
    assert rows_of([2, 0, 1]).tolist() == [0, 0, 2]
