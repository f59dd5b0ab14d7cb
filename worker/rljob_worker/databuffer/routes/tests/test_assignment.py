"""Layouts: the same bytes for any tree; assignments: both ends agree on who feeds whom."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.batch.row_index import RowIndex
from rljob_worker.databuffer.protocol.errors import Malformed
from rljob_worker.databuffer.routes.assignment import PLAIN_ROWS, Assignment, ProducerLayout, merge_layouts


def index_of(row_ids):
    """Rows of groups of two, ten tokens and their number."""
    ids = np.array(row_ids, np.int64)
    return RowIndex(ids, ids // 2, ids + 10)


def numbers(layout):
    """Parts, rows, groups, tokens as lists."""
    index = layout.index
    return [layout.parts.tolist(), index.row_ids.tolist(), index.group_ids.tolist(), index.num_tokens.tolist()]


def assignment_of(parts, shares, num_shares):
    parts = np.array(parts, np.int64)
    return Assignment(ProducerLayout(parts, index_of(range(len(parts)))), np.array(shares, np.int64), num_shares)


def test_a_part_lays_out_its_rows():
    layout = ProducerLayout.of_part(3, index_of([4, 7]))
    assert numbers(layout) == [[3, 3], [4, 7], [2, 3], [14, 17]]
    assert layout.parts.dtype == np.int64


def test_layouts_merge_by_part_and_a_parts_rows_stay_in_their_order():
    second, first = ProducerLayout.of_part(2, index_of([0, 9])), ProducerLayout.of_part(1, index_of([3, 5]))
    both = ProducerLayout.merge([second, first])
    assert numbers(both) == [[1, 1, 2, 2], [3, 5, 0, 9], [1, 2, 0, 4], [13, 15, 10, 19]]
    empty = ProducerLayout.of_part(0, index_of([]))
    assert numbers(ProducerLayout.merge([both, empty])) == numbers(both)


@pytest.mark.parametrize("num_rows, is_smaller", [(0, False), (PLAIN_ROWS, False), (PLAIN_ROWS + 1, True)])
def test_many_rows_travel_compressed(num_rows, is_smaller):
    layout = ProducerLayout.of_part(1, index_of(range(num_rows)))
    data = layout.to_bytes()
    assert numbers(ProducerLayout.from_bytes(data)) == numbers(layout)
    if is_smaller:
        assert len(data) < num_rows * 4 * 8 / 3
    else:
        assert len(data) == 8 + num_rows * 4 * 8


@given(st.lists(st.integers(0, 4), min_size=1, max_size=7), st.randoms(use_true_random=False))
def test_the_same_parts_give_the_same_bytes_whatever_the_tree(sizes, rng):
    payloads = [
        ProducerLayout.of_part(part, index_of(range(part, part + size))).to_bytes() for part, size in enumerate(sizes)
    ]
    together = merge_layouts(payloads)
    rng.shuffle(payloads)
    while len(payloads) > 1:
        count = rng.randint(2, len(payloads))
        payloads = [merge_layouts(payloads[:count]), *payloads[count:]]
        rng.shuffle(payloads)
    assert numbers(ProducerLayout.from_bytes(payloads[0])) == numbers(ProducerLayout.from_bytes(together))
    if len(sizes) > 1:
        assert payloads[0] == together


def test_shares_of_a_part_are_those_of_its_rows():
    assignment = assignment_of([0, 0, 2, 2, 2], [1, 0, 3, 1, 1], 4)
    assert assignment.shares_of_part(0).tolist() == [1, 0]
    assert assignment.shares_of_part(1).tolist() == []
    assert assignment.shares_of_part(2).tolist() == [3, 1, 1]
    assert assignment.shares_of_part(3).tolist() == []


def test_parts_and_the_shares_they_feed():
    # share 2 has no row: part 0 tells the columns' types
    assignment = assignment_of([0, 0, 2, 2, 2], [1, 0, 3, 1, 1], 4)
    assert [assignment.parts_of(share) for share in range(4)] == [(0,), (0, 2), (0,), (2,)]
    assert [assignment.shares_fed_by(part) for part in range(4)] == [(0, 1, 2), (), (1, 3), ()]


def test_without_a_row_part_0_feeds_everybody():
    assignment = assignment_of([], [], 3)
    assert [assignment.parts_of(share) for share in range(3)] == [(0,), (0,), (0,)]
    assert assignment.shares_fed_by(0) == (0, 1, 2) and assignment.shares_fed_by(1) == ()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=20))
def test_both_ends_agree_also_on_a_share_without_rows(rows):
    rows = sorted(rows, key=lambda row: row[0])
    assignment = assignment_of([part for part, _ in rows], [share for _, share in rows], 5)
    for share in range(5):
        feeding = tuple(part for part in range(4) if share in assignment.shares_fed_by(part))
        assert assignment.parts_of(share) == feeding
        held = {part for part, item in rows if item == share}
        assert held <= set(feeding) and (held or feeding == (0,))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01" * 9,
        (2).to_bytes(8, "little") + bytes(63),
        (PLAIN_ROWS + 1).to_bytes(8, "little") + b"no zstd",
        b"\xff" * 40,
    ],
)
def test_bytes_that_are_not_a_layout_are_refused_by_name(data):
    with pytest.raises(Malformed, match="bytes are not a layout"):
        ProducerLayout.from_bytes(data)
