"""Indexes of rows and groups."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.batch.row_index import RowIndex


def index_of(row_ids):
    """Groups of two, as many tokens as the row's number and one."""
    ids = np.array(row_ids, np.int64)
    return RowIndex(ids, ids // 2, ids + 1)


def test_rows_are_taken_together():
    taken = index_of([8, 5, 2]).take(np.array([2, 0]))
    assert (taken.row_ids.tolist(), taken.group_ids.tolist(), taken.num_tokens.tolist()) == ([2, 8], [1, 4], [3, 9])


def test_order_is_by_row_and_leaves_equals_as_they_came():
    index = index_of([8, 2, 8, 5])
    assert index.order().tolist() == [1, 3, 0, 2]


def test_many_rows_that_come_twice_stay_as_they_came():
    assert index_of([7, 3] * 50).order().tolist() == [*range(1, 100, 2), *range(0, 100, 2)]


def test_every_source_learns_where_its_rows_went():
    # rows 8 2 | 5 | (none) | 7 in order: 2 5 7 8
    index = RowIndex.concat([index_of(ids) for ids in ([8, 2], [5], [], [7])])
    targets = RowIndex.targets_of(index.order(), [2, 1, 0, 1])
    assert [target.tolist() for target in targets] == [[3, 0], [1], [], [2]]


def groups_of(group_ids):
    ids = np.array(group_ids, np.int64)
    return RowIndex(np.arange(len(ids)), ids, ids)


@given(st.lists(st.integers(-3, 6)), st.booleans(), st.data())
def test_a_group_has_its_head_where_it_appears_first(group_ids, is_sorted, data):
    group_ids = sorted(group_ids) if is_sorted else group_ids
    index = groups_of(group_ids)
    heads = [group_ids.index(group) for group in group_ids]
    assert index.heads().tolist() == heads
    rows = data.draw(st.lists(st.sampled_from(range(len(group_ids))))) if group_ids else []
    assert index.head_of(np.array(rows, np.int64)).tolist() == [heads[row] for row in rows]
    runs = index.group_runs(np.array(rows, np.int64))
    first = [at for at, row in enumerate(rows) if heads[row] not in [heads[r] for r in rows[:at]]]
    assert runs.target.tolist() == first
    assert runs.source.tolist() == [heads[rows[at]] for at in first]


def test_parts_bring_a_group_once_to_its_head():
    # groups 0 0 | 1 1 of rows 0 .. 3; the first part has row 1, the second 0 and 3, the third 2
    index = groups_of([0, 0, 1, 1])
    targets = [np.array([1]), np.array([0, 3]), np.array([2])]
    runs = index.merged_groups([groups_of([0]), groups_of([0, 1]), groups_of([1])], targets)
    assert [(run.source.tolist(), run.target.tolist()) for run in runs] == [([0], [0]), ([1], [2]), ([], [])]


def test_every_part_says_where_its_rows_went():
    with pytest.raises(ValueError, match="zip"):
        groups_of([0, 1]).merged_groups([groups_of([0]), groups_of([1])], [np.array([0])])


def test_the_names_of_the_columns_are_those_of_every_edge():
    assert list(index_of([1]).columns()) == ["row_id", "group_id", "num_tokens"]


def test_reading_batches_does_not_load_arrow():
    code = "import rljob_worker.batch, sys; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
