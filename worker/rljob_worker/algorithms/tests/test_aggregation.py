"""From losses of tokens to one number: aggregations and their denominators."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.algorithms import AGGREGATIONS
from rljob_worker.algorithms.aggregation import aggregate
from rljob_worker.algorithms.tests.builders import double, ints, rows_of

# rows of 3, 0 and 1 action tokens: sums 6 and 10; the middle row is fully masked
VALUES, ROW, LENGTHS = double(1, 2, 3, 10), rows_of([3, 0, 1]), ints(3, 0, 1)


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [
        ("TokenMean", 4, 16 / 4),
        ("SequenceMeanTokenMean", 2, (6 / 3 + 10 / 1) / 2),
        ("SequenceMeanTokenSum", 2, (6 + 10) / 2),
        ("SequenceMeanTokenSumNorm", 2, (6 + 10) / 2 / 100),  # 100 tokens allowed
    ],
)
def test_trap_5_aggregations_by_hand_with_a_fully_masked_row(name, count, expected):
    aggregation = AGGREGATIONS[name](100)
    result = aggregation.units(LENGTHS).sum().item()
    assert result == count
    assert aggregate(aggregation, VALUES, ROW, LENGTHS, result).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", AGGREGATIONS.names())
def test_without_a_token_anywhere_the_loss_is_zero_and_has_a_gradient(name):
    values = double().requires_grad_()
    aggregation = AGGREGATIONS[name](100)
    lengths = ints(0, 0)
    loss = aggregate(aggregation, values, rows_of([0, 0]), lengths, float(aggregation.units(lengths).sum()))
    loss.backward()
    assert loss.item() == 0
    assert values.grad.tolist() == []


@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=10),
    name=st.sampled_from(AGGREGATIONS.names()),
    cut=st.integers(0, 10),
)
def test_trap_2_parts_over_one_denominator_add_up(lengths, name, cut):
    aggregation = AGGREGATIONS[name](4)
    values = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tokens = sum(lengths[:cut])
    parts = [(lengths[:cut], values[:tokens]), (lengths[cut:], values[tokens:])]
    count = sum(float(aggregation.units(ints(*rows)).sum()) for rows, _ in parts)
    assert count == float(aggregation.units(ints(*lengths)).sum())
    total = sum(aggregate(aggregation, part, rows_of(rows), ints(*rows), count) for rows, part in parts)
    whole = aggregate(aggregation, values, rows_of(lengths), ints(*lengths), count)
    assert torch.allclose(total, whole, rtol=0, atol=1e-12)


def test_trap_1_the_constant_does_not_depend_on_what_else_is_in_the_micro_batch():
    aggregation = AGGREGATIONS["SequenceMeanTokenSumNorm"](100)
    assert aggregation.divisors(rows_of([1]), ints(1)) == aggregation.divisors(rows_of([1, 90]), ints(1, 90))
