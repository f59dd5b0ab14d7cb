"""Rows of several sources in one segment."""

import numpy as np
import pytest

from rljob_worker.batch import Column
from rljob_worker.batch.column_kind import ColumnKind
from rljob_worker.batch.row_index import RowIndex
from rljob_worker.databuffer.protocol.errors import Malformed
from rljob_worker.databuffer.rows import segment
from rljob_worker.databuffer.rows.arrangement import Arrangement, Header, arrange, write_rows
from rljob_worker.databuffer.rows.tests.batches import batch_of, same, stored
from rljob_worker.errors import BadData


def header_of(row_ids, rows=None):
    """Header of the rows at some positions of a part, or of all."""
    return Header.of(stored(batch_of(row_ids)), np.arange(len(row_ids)) if rows is None else np.array(rows))


def room_for(arrangement):
    """The consumer's segment, index written."""
    target = segment.views(np.zeros(arrangement.contents.num_bytes, np.uint8), 0, arrangement.contents)
    arrangement.write_index(target)
    return target


def test_a_header_says_how_long_rows_are_and_a_group_with_the_first_row_that_is_sent():
    # rows 3 4 5 are group 1, rows 6 8 group 2; sent are 4, 5 and 8. A prompt has as many tokens as its group and one
    header = header_of([3, 4, 5, 6, 8], [1, 2, 4])
    assert header.index.row_ids.tolist() == [4, 5, 8]
    assert header.lengths["ids"].tolist() == [0, 1, 0]
    assert header.lengths["prompt"].tolist() == [2, 0, 3]
    assert "fixed" not in header.lengths and header.kinds["fixed"].dtype == "float32"


def test_a_header_comes_back_from_bytes():
    header = header_of([3, 4, 6])
    back = Header.from_bytes(header.to_bytes(), header.kinds)
    assert {name: lengths.tolist() for name, lengths in back.lengths.items()} == {
        name: lengths.tolist() for name, lengths in header.lengths.items()
    }
    assert back.index.num_tokens.tolist() == header.index.num_tokens.tolist()


def test_a_header_without_rows_comes_back_too():
    header = header_of([])
    assert len(Header.from_bytes(header.to_bytes(), header.kinds).index) == 0


LONG = 1 << 50


@pytest.mark.parametrize(
    "lies, words",
    [
        ({"num_tokens": [1, -1]}, "num_tokens of -1"),
        ({"lengths": [3, -3]}, "ids of -3"),
        ({"lengths": [LONG, LONG]}, "ids has more bytes than any host"),
        ({"lengths": [(1 << 63) - 1] * 2}, "ids has more bytes than any host"),
        ({"num_tokens": [LONG, 1]}, "num_tokens has more bytes than any host"),
        ({"more": b"1234567"}, "a header of 71 bytes, where a row has 32"),
        ({"more": b"12345678"}, "a header of 72 bytes, where a row has 32"),
        ({"tail": (-1,)}, "no column is like ids: ColumnKind"),
        ({"storage": "O"}, "no column is like ids: ColumnKind"),
    ],
)
def test_a_header_that_cannot_be_so_is_malformed(lies, words):
    index = RowIndex(np.arange(2), np.arange(2), np.array(lies.get("num_tokens", [1, 1])))
    kinds = {"ids": ColumnKind("int8", lies.get("storage", "int8"), lies.get("tail", ()), True)}
    header = Header(index, {"ids": np.array(lies.get("lengths", [1, 1]))}, kinds)
    with pytest.raises(Malformed, match=f"^{words}"):
        Header.from_bytes(header.to_bytes() + lies.get("more", b""), kinds)


def test_a_header_may_tell_of_as_much_as_fits_nowhere():
    index, kinds = RowIndex(*np.zeros((3, 1), np.int64)), {"ids": ColumnKind("int8", "int8", (), True)}
    header = Header(index, {"ids": np.array([LONG])}, kinds)
    assert Header.from_bytes(header.to_bytes(), kinds).num_bytes == LONG + 32


def test_rows_are_arranged_in_the_order_of_their_ids():
    arrangement = arrange([header_of([1, 7]), header_of([]), header_of([3, 4])], "a->b")
    assert [target.tolist() for target in arrangement.targets] == [[0, 3], [], [1, 2]]
    assert arrangement.header.index.row_ids.tolist() == [1, 3, 4, 7]
    assert arrangement.contents.num_rows == 4


def test_a_group_from_two_sources_lies_once_at_its_first_row():
    # row 4 comes from the second source and row 3, the first of group 1, from the first
    arrangement = arrange([header_of([3, 6]), header_of([4, 5, 7])], "a->b")
    assert arrangement.header.lengths["prompt"].tolist() == [2, 0, 0, 3, 0]
    target = room_for(arrangement)
    assert target.columns["prompt"].offsets.tolist() == [0, 2, 2, 2, 5, 5]
    for row_ids, targets in zip(([3, 6], [4, 5, 7]), arrangement.targets, strict=True):
        write_rows(target, targets, stored(batch_of(row_ids)), np.arange(len(row_ids)))
    assert same(target.as_batch(), batch_of([3, 4, 5, 6, 7]))


def test_a_source_whose_rows_are_in_no_order_is_placed_too():
    """Rows of two parts of one host, one after the other."""
    parts = [header_of([4, 7]), header_of([3, 5])]
    merged = Header.concat(parts)
    contents = segment.plan_contents(
        4, {name: (k, int(merged.lengths[name].sum()) if k.ragged else 4) for name, k in merged.kinds.items()}
    )
    landed = segment.views(np.zeros(contents.num_bytes, np.uint8), 0, contents)
    Arrangement(contents, merged, ()).write_index(landed)
    write_rows(landed, np.array([0, 1]), stored(batch_of([4, 7])), np.arange(2))
    write_rows(landed, np.array([2, 3]), stored(batch_of([3, 5])), np.arange(2))
    arrangement = arrange([merged], "a->b")
    target = room_for(arrangement)
    write_rows(target, arrangement.targets[0], landed, np.arange(4))
    assert same(target.as_batch(), batch_of([3, 4, 5, 7]))


def test_a_row_from_two_producers_is_refused():
    with pytest.raises(BadData, match="edge a->b: row 3 was put by two producers"):
        arrange([header_of([1, 2]), header_of([2, 3])], "a->b")


def test_producers_that_disagree_on_a_dtype_are_named():
    other = batch_of([2]).with_columns({"fixed": Column.fixed(np.zeros(1, np.int64))})
    headers = [header_of([1]), Header.of(stored(other), np.arange(1))]
    with pytest.raises(BadData, match=r"column\(s\) fixed: fixed float32 and fixed int64; every rank must write"):
        arrange(headers, "a->b")


def test_producers_that_disagree_on_a_shape_or_on_a_column_are_named():
    other = batch_of([2]).select(["ids", "image"])
    headers = [Header.of(stored(batch_of([1]).select(["image"])), np.arange(1)), Header.of(stored(other), np.arange(1))]
    with pytest.raises(BadData, match=r"column\(s\) ids: no ids and ids int32; every"):
        arrange(headers, "a->b")
    other = batch_of([2]).select([]).with_columns({"image": Column.fixed(np.zeros((1, 4), np.float16))})
    headers[1] = Header.of(stored(other), np.arange(1))
    with pytest.raises(BadData, match=r"image float16\[2, 3\] and image float16\[4\]"):
        arrange(headers, "a->b")


def test_one_column_is_not_per_row_here_and_per_group_there():
    by_row = batch_of([5])
    by_row = by_row.with_columns({"prompt": by_row["prompt"]})
    headers = [header_of([3]), Header.of(stored(by_row), np.arange(1))]
    with pytest.raises(BadData, match="prompt int64 per group and prompt int64;"):
        arrange(headers, "a->b")


def test_producers_that_disagree_on_a_group_are_named():
    longer = Column.ragged([[1, 2, 3]]).per_group_at(np.array([0]), 1)
    headers = [header_of([3]), Header.of(stored(batch_of([4]).with_columns({"prompt": longer})), np.arange(1))]
    with pytest.raises(BadData, match="edge a->b: .* disagree on column prompt of group 1: 2 and 3 values; it is one"):
        arrange(headers, "a->b")


def test_a_producer_without_rows_does_not_decide_the_dtype():
    empty = batch_of([]).with_columns({"fixed": Column.fixed(np.zeros(0, np.int64))})
    headers = [Header.of(stored(empty), np.arange(0)), header_of([4])]
    assert arrange(headers, "a->b").header.kinds["fixed"].dtype == "float32"


def test_no_rows_at_all_have_the_columns_of_the_first_source():
    arrangement = arrange([header_of([]), header_of([])], "a->b")
    assert same(room_for(arrangement).as_batch(), batch_of([]))


def test_no_rows_are_placed_as_nothing():
    arrangement = arrange([header_of([3, 5])], "a->b")
    target = room_for(arrangement)
    write_rows(target, np.arange(0), stored(batch_of([])), np.arange(0))
    assert not target.columns["fixed"].values.any()
