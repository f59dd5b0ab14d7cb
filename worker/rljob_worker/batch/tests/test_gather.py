"""The one gather: any rows to any rows, as slices or through an index, whatever a value is."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.batch import gather
from rljob_worker.batch.gather import Runs, Stretches, Taking, copy_rows, offsets_of, take_rows
from rljob_worker.tests.indexed import Indexed


def numbered(lengths, tail=()):
    """Values that count up: no two are equal."""
    total = int(np.sum(lengths)) * int(np.prod(tail, dtype=np.int64))
    return np.arange(total).reshape(-1, *tail), offsets_of(lengths)


def rows_of(values, offsets):
    return [values[first:last].tolist() for first, last in zip(offsets[:-1], offsets[1:], strict=True)]


def test_offsets_start_at_zero_and_end_with_the_number_of_values():
    assert offsets_of([2, 0, 3]).tolist() == [0, 2, 2, 5]
    assert offsets_of([]).tolist() == [0]


def test_a_stretch_goes_on_only_while_both_sides_do():
    #                 goes on | source jumps | target jumps | goes on
    runs = Runs.of(np.array([4, 5, 8, 9, 10]), np.array([0, 1, 2, 6, 7]))
    assert (runs.firsts.tolist(), runs.lasts.tolist()) == ([0, 2, 3], [1, 2, 4])
    assert not runs.is_one


def test_neighbours_are_one_stretch_and_so_is_nothing():
    assert Runs.taking(np.array([3, 4, 5])).is_one
    assert Runs.taking(np.array([], np.int64)).is_one
    assert not Runs.taking(np.array([3, 5])).is_one
    assert not Runs.taking(np.array([4, 3])).is_one


mixed = st.lists(st.sampled_from([0, 1, 2, 7, 63, 64, 65, 300]), min_size=1, max_size=12)
tails = st.sampled_from([(), (2,), (2, 3)])


@given(mixed, tails, st.data())
def test_rows_are_taken_in_any_order_and_more_than_once(lengths, tail, data):
    wanted = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=15)), np.int64)
    values, offsets = numbered(lengths, tail)
    taken, into = take_rows(values, offsets, Runs.taking(wanted), len(wanted))
    assert rows_of(taken, into) == [rows_of(values, offsets)[row] for row in wanted]
    assert not np.shares_memory(taken, values)


@given(mixed, tails, st.randoms(use_true_random=False))
def test_rows_are_put_where_they_belong_and_nothing_else_is_touched(lengths, tail, random):
    values, offsets = numbered(lengths, tail)
    rows = list(range(len(lengths)))
    random.shuffle(rows)
    source = np.array(rows[: random.randint(0, len(rows))], np.int64)
    target = np.array(random.sample(range(2 * len(lengths)), len(source)), np.int64)
    into_lengths = np.full(2 * len(lengths), 3)
    into_lengths[target] = np.array(lengths)[source]
    into_offsets = offsets_of(into_lengths)
    into = np.full((int(into_offsets[-1]), *tail), -1)
    copy_rows(into, into_offsets, values, offsets, Runs.of(source, target))
    expected = [np.full((int(n), *tail), -1).tolist() for n in into_lengths]
    for row, to in zip(source, target, strict=True):
        expected[to] = rows_of(values, offsets)[row]
    assert rows_of(into, into_offsets) == expected


@given(st.lists(st.integers(0, 9), max_size=15), tails)
def test_fixed_rows_are_taken_too(wanted, tail):
    values, _ = numbered([10], tail)
    taken, offsets = take_rows(values, None, Runs.taking(np.array(wanted, np.int64)), len(wanted))
    assert offsets is None
    assert taken.tolist() == [values[row].tolist() for row in wanted]
    assert not np.shares_memory(taken, values)


def test_rows_that_nobody_fills_are_empty():
    values, offsets = numbered([1, 2, 3])
    taken, into = take_rows(values, offsets, Runs.of(np.array([2, 0]), np.array([1, 4])), 6)
    assert rows_of(taken, into) == [[], [3, 4, 5], [], [], [0], []]
    with pytest.raises(AssertionError, match="no empty rows"):
        take_rows(values, None, Runs.of(np.array([2]), np.array([1])), 2)


@pytest.mark.parametrize(
    ("rows", "is_view"), [([1, 2, 3], True), ([0, 2], False), ([2, 4], True), ([4, 2], False), ([], True), ([3], True)]
)
def test_what_lies_as_one_piece_may_be_a_view(rows, is_view):
    """Row 3 is empty: rows 2 and 4 lie side by side."""
    values, offsets = numbered([1, 2, 3, 0, 4])
    runs = Runs.taking(np.array(rows, np.int64))
    taken, into = take_rows(values, offsets, runs, len(rows), may_view=True)
    assert rows_of(taken, into) == [rows_of(values, offsets)[row] for row in rows]
    assert taken.base is values.base if is_view else not np.shares_memory(taken, values)


@pytest.mark.parametrize(("rows", "is_view"), [([1, 2, 3], True), ([0, 2], False), ([], True)])
def test_neighbours_of_a_fixed_column_may_be_a_view(rows, is_view):
    values = np.arange(5)
    taken, _ = take_rows(values, None, Runs.taking(np.array(rows, np.int64)), len(rows), may_view=True)
    assert taken.tolist() == rows
    assert (taken.base is values) == is_view


@given(mixed, st.data())
def test_some_of_the_rows_that_are_taken_are_cut_out(lengths, data):
    wanted = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=15)), np.int64)
    first, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(wanted))] * 2)))
    values, offsets = numbered(lengths)
    piece = Taking.of(offsets, Runs.taking(wanted), len(wanted)).within(first, stop)
    assert rows_of(piece.values(values), piece.offsets) == [rows_of(values, offsets)[row] for row in wanted[first:stop]]
    fixed = Taking.of(None, Runs.taking(wanted), len(wanted)).within(first, stop)
    assert fixed.values(np.arange(len(lengths))).tolist() == wanted[first:stop].tolist()


@given(mixed, st.randoms(use_true_random=False), st.data())
def test_stretches_of_a_source_in_pieces_are_the_whole(lengths, random, data):
    values, offsets = numbered(lengths)
    rows = list(range(len(lengths)))
    random.shuffle(rows)
    target_offsets = offsets_of([lengths[rows.index(row)] for row in range(len(rows))])
    whole = Stretches.of(target_offsets, offsets, Runs.of(np.arange(len(rows)), np.array(rows)))
    cuts = sorted({0, len(values), *data.draw(st.lists(st.integers(0, len(values)), max_size=4))})
    into, expected = np.zeros(len(values)), np.zeros(len(values))
    whole.copy(expected, values)
    for first, stop in itertools.pairwise(cuts):
        whole.of_source(first, stop).copy(into, values[first:stop])
    assert into.tolist() == expected.tolist() and sorted(into) == values.tolist()


def test_neighbours_of_a_fixed_column_reach_neighbours():
    into = np.zeros(5)
    copy_rows(into, None, np.arange(9.0), None, Runs.of(np.array([3, 4, 5]), np.array([1, 2, 3])))
    assert into.tolist() == [0, 3, 4, 5, 0]


@pytest.mark.parametrize(("length", "fetched"), [(gather.SHORT_VALUES - 1, 3), (gather.SHORT_VALUES, 0)])
def test_only_short_rows_go_through_an_index(length, fetched):
    """An index takes eight bytes a value: of rows of megabytes it would be many times what it fetches."""
    values, offsets = numbered([length] * 6)
    Indexed.fetched = 0
    taken, _ = take_rows(values.view(Indexed), offsets, Runs.taking(np.array([4, 0, 2])), 3)
    assert Indexed.fetched == fetched * length
    assert taken.tolist() == [*values[4 * length : 5 * length], *values[:length], *values[2 * length : 3 * length]]
