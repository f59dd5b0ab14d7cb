"""Rows of parts as record batches."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.batch import Batch, Column
from rljob_worker.batch.arrow import columns_of_record, kinds_of_schema
from rljob_worker.databuffer.protocol.codec import encode
from rljob_worker.databuffer.protocol.errors import Malformed
from rljob_worker.databuffer.rows import stream
from rljob_worker.databuffer.rows.arrangement import Header
from rljob_worker.databuffer.rows.tests.batches import batch_of, index_of, row_lists, stored
from rljob_worker.errors import BadData

ROW_BYTES = 24


def sized(lengths):
    """Rows of one column of bytes."""
    return stored(Batch.of(index_of(range(len(lengths))), {"b": Column.binary([b"x" * n for n in lengths])}))


def cut(views, batch_bytes):
    part = stream.PartRows(views, np.arange(len(views.index)))
    return [list(range(*piece)) for piece in part.cuts(batch_bytes)]


def test_pieces_are_as_large_as_they_may_be():
    views = sized([10, 20, 30, 40])  # with an offset and the index 42, 52, 62 and 72 bytes
    assert stream.bytes_per_row(views).tolist() == [42, 52, 62, 72]
    assert cut(views, 94) == [[0, 1], [2], [3]]
    assert cut(views, 93) == [[0], [1], [2], [3]]
    assert cut(views, 156) == [[0, 1, 2], [3]]
    assert cut(views, 228) == [[0, 1, 2, 3]]
    assert cut(views, 134) == [[0, 1], [2, 3]]


def test_a_row_larger_than_a_piece_goes_alone():
    assert cut(sized([1, 500, 1, 1]), 100) == [[0], [1], [2, 3]]
    assert cut(sized([500, 1]), 100) == [[0], [1]]
    assert cut(sized([]), 100) == []


def records(selections, batch_bytes=stream.BATCH_BYTES, gathered=lambda seconds: None):
    return [record for record, _ in stream.stream(selections, gathered, batch_bytes).records]


def rows_in(record):
    return record.column("row_id").to_pylist()


def values_of(record, name):
    return columns_of_record(record, kinds_of_schema(record.schema))[1][name].values


@given(row_lists.filter(bool), st.integers(1, 2000), st.data())
def test_batches_hold_every_row_once_and_are_small(row_ids, batch_bytes, data):
    views = stored(batch_of(row_ids))
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, len(row_ids) - 1)))), np.int64)
    sent = records([(views, rows)], batch_bytes)
    assert [row for record in sent for row in rows_in(record)] == [row_ids[row] for row in rows]
    sizes = stream.bytes_per_row(views, rows).tolist()
    for record in sent:
        taken, sizes = sizes[: record.num_rows], sizes[record.num_rows :]
        assert len(taken) == 1 or sum(taken) <= batch_bytes


@given(row_lists, st.integers(1, 600), st.data())
def test_a_batch_has_the_values_of_its_rows_column_by_column(row_ids, batch_bytes, data):
    batch = batch_of(row_ids)
    views = stored(batch)
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, max(0, len(row_ids) - 1))))), np.int64)[: len(row_ids)]
    sent, taken = records([(views, rows)], batch_bytes), batch.take(rows)
    for name, column in taken.columns.items():
        assert b"".join(values_of(record, name).tobytes() for record in sent) == column.values.tobytes(), name
        if column.is_ragged:
            lengths = [
                columns_of_record(record, kinds_of_schema(record.schema))[1][name].lengths.tolist() for record in sent
            ]
            assert sum(lengths, []) == column.lengths.tolist(), name


@given(row_lists.filter(bool), st.integers(1, 600), st.data())
def test_streams_of_neighbouring_ranges_bring_what_one_stream_does(row_ids, batch_bytes, data):
    views = stored(batch_of(row_ids))
    picks = [np.array(sorted(data.draw(st.sets(st.integers(0, len(row_ids) - 1)))), np.int64) for _ in range(2)]
    selections = [(views, rows) for rows in picks]
    num_rows = sum(map(len, picks))
    cuts = sorted({0, *data.draw(st.sets(st.integers(0, num_rows))), num_rows})
    parts = [
        record
        for first, stop in pairwise(cuts)
        for record, _ in stream.stream(selections, lambda seconds: None, batch_bytes, first, stop).records
    ]
    whole = records(selections, batch_bytes)
    assert [row for record in parts for row in rows_in(record)] == [row for record in whole for row in rows_in(record)]
    for name in views.columns:
        assert b"".join(values_of(record, name).tobytes() for record in parts) == b"".join(
            values_of(record, name).tobytes() for record in whole
        ), name


def ranges_of(lengths):
    views = sized(lengths)
    return stream.stream_ranges(Header.of(views, np.arange(len(lengths))))


def test_a_range_for_each_stream_has_about_as_many_bytes_as_the_others(monkeypatch):
    monkeypatch.setattr(stream, "STREAM_BYTES", 100)
    assert ranges_of([18]) == [(0, 1)] and ranges_of([]) == [(0, 0)]
    # with an offset and the index 50 bytes a row
    assert ranges_of([18] * 3) == [(0, 3)], "150 bytes are less than two streams' 200"
    assert ranges_of([18] * 4) == [(0, 2), (2, 4)]
    assert ranges_of([18] * 6) == [(0, 2), (2, 4), (4, 6)]
    assert ranges_of([18] * 8) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert len(ranges_of([18] * 100)) == stream.MAX_STREAMS
    assert ranges_of([968, 18, 18]) == [(0, 1), (1, 3)], "1,100 bytes: no row is cut, and no range is empty"


def test_the_checksum_of_a_batch_is_that_of_all_its_columns():
    views = stored(batch_of([3, 5]))
    ((record, checksum),) = stream.stream([(views, np.arange(2))], lambda seconds: None).records
    index, columns = columns_of_record(record, kinds_of_schema(record.schema))
    assert checksum == stream.rows_checksum(index, columns)
    for name, column in columns.items():
        if column.values.size:
            other = column.values.copy()
            other.reshape(-1).view(np.uint8)[0] ^= 1
            assert stream.rows_checksum(index, {**columns, name: replace(column, values=other)}) != checksum
        if column.offsets is not None:
            other = replace(column, offsets=column.offsets + 1)
            assert stream.rows_checksum(index, {**columns, name: other}) != checksum
    assert stream.rows_checksum(replace(index, group_ids=index.group_ids + 1), columns) != checksum


def test_a_group_is_sent_once_however_many_batches_its_rows_take():
    views = stored(batch_of([3, 4, 5]))
    sent = records([(views, np.array([1, 2]))], 1)
    assert [values_of(record, "prompt").tolist() for record in sent] == [[1, 1], []]


def test_any_client_of_arrow_reads_the_rows():
    (record,) = records([(stored(batch_of([3, 5])), np.arange(2))])
    assert record.column("ids").to_pylist() == [[3, 4, 5], [5]]
    assert record.column("text").to_pylist() == ["", "éé"]
    assert record.column("image").to_pylist()[0] == [3, 4, 5, 6, 7, 8]
    assert record.column("group_id").to_pylist() == [1, 1]
    record.validate(full=True)


def test_neighbours_are_sent_from_where_they_lie():
    views = stored(batch_of(range(12)).select(["ids", "fixed"]))

    def lie_there(rows, first, stop):
        columns = stream.PartRows(views, np.array(rows)).gather(first, stop)[1]
        return [np.shares_memory(columns[name].values, views.columns[name].values) for name in ("ids", "fixed")]

    assert lie_there(range(3, 9), 0, 6) == lie_there(range(3, 9), 2, 5) == [True, True]
    assert lie_there([1, 2, 7], 0, 3) == [False, False] and lie_there([1, 2, 7], 0, 2) == [True, True]


def test_a_stream_has_the_rows_in_the_order_of_their_header():
    parts = [(stored(batch_of([4, 7, 9])), np.array([0, 2])), (stored(batch_of([])), np.arange(0))]
    parts.append((stored(batch_of([3, 5])), np.arange(2)))
    seconds = []
    header = stream.header_of(parts, "a->b")
    assert Header.from_bytes(header.to_bytes(), header.kinds).index.row_ids.tolist() == [4, 9, 3, 5]
    assert [rows_in(record) for record in records(parts, 1, seconds.append)] == [[4], [9], [3], [5]]
    assert len(seconds) == 4 and all(s >= 0 for s in seconds)


def test_a_stream_without_rows_is_empty_and_its_header_tells_the_columns():
    parts = [(stored(batch_of([4])), np.arange(0))]
    assert records(parts) == []
    header = stream.header_of(parts, "a->b")
    assert len(header.index) == 0 and list(header.kinds) == list(batch_of([]).columns)


def with_other_type(row_ids):
    return batch_of(row_ids).with_columns({"fixed": Column.fixed(np.zeros(len(row_ids), np.int64))})


def test_of_parts_without_rows_the_first_decides():
    parts = [(stored(with_other_type([])), np.arange(0)), (stored(batch_of([4])), np.arange(0))]
    assert stream.header_of(parts, "a->b").kinds["fixed"].dtype == "int64"


def test_a_part_without_rows_does_not_decide_the_columns():
    parts = [(stored(with_other_type([])), np.arange(0)), (stored(batch_of([4])), np.arange(1))]
    (record,) = records(parts)
    assert values_of(record, "fixed").tolist() == [4.0]
    assert stream.header_of(parts, "a->b").kinds["fixed"].dtype == "float32"


def test_producers_of_one_host_that_disagree_are_named():
    parts = [(stored(with_other_type([3])), np.arange(1)), (stored(batch_of([4])), np.arange(1))]
    with pytest.raises(BadData, match=r"edge a->b: .* column\(s\) fixed: fixed int64 and fixed float32"):
        stream.header_of(parts, "a->b")


@pytest.mark.parametrize(
    ("sources", "num_bytes"),
    [(0, 4 << 20), (1, 4 << 20), (16, 4 << 20), (17, (64 << 20) // 17), (128, 1 << 19), (999, 1 << 19)],
)
def test_batches_of_all_sources_together_stay_within_64_mib_while_they_are_not_tiny(sources, num_bytes):
    assert stream.batch_bytes_for(sources) == num_bytes


def test_a_row_takes_its_index_its_values_and_its_offsets():
    views = stored(batch_of([3, 4]).select(["ids", "fixed", "image", "patches", "prompt"]))
    # ids 4 bytes a value, 3 and 0 of them; image 12; patches 16 bytes, 0 and 1; prompt 2 of 8 bytes, with row 3 only
    common = ROW_BYTES + 3 * 8 + 4 + 12
    assert stream.bytes_per_row(views).tolist() == [common + 12 + 16, common + 16]
    assert stream.bytes_per_row(views, np.array([1])).tolist() == [common + 16 + 16]


@given(row_lists.filter(bool), st.data())
def test_packed_rows_are_the_rows_of_the_stream(row_ids, data):
    views = stored(batch_of(row_ids))
    picks = [np.array(sorted(data.draw(st.sets(st.integers(0, len(row_ids) - 1)))), np.int64) for _ in range(2)]
    selections = [(views, rows) for rows in picks]
    kinds = stream.header_of(selections, "a->b").kinds
    came = list(stream.unpacked(stream.packed(selections), kinds))
    sent = list(stream.stream(selections, lambda seconds: None).records)
    assert [(record.equals(other), a == b) for (record, a), (other, b) in zip(came, sent, strict=True)] == [
        (True, True)
    ] * len(sent)


@pytest.mark.parametrize("data", [b"", b"\x91", b"\x91\x92\xc4\x01", b"rows", b"\x91\x01", b"\x80"])
def test_bytes_that_are_no_packed_rows_are_refused_by_name(data):
    with pytest.raises(Malformed, match=f"^{len(data)} bytes are not packed rows: "):
        list(stream.unpacked(data, {}))


def test_bytes_that_are_not_a_record_batch_are_refused_by_name():
    with pytest.raises(Malformed, match="^4 bytes are not a record batch: "):
        list(stream.unpacked(encode([(b"rows", b"")]), {}))


def test_rows_of_all_sources_that_come_with_offers_are_bounded_together():
    assert [stream.few_bytes_for(n) for n in (0, 1, 128, 129, 1024)] == [65536, 65536, 65536, 65027, 8192]
    assert stream.few_bytes_for(1, 100) == 100


def test_a_header_tells_the_bytes_of_its_rows():
    views = sized([10, 20, 30, 40])
    assert Header.of(views, np.array([1, 3])).num_bytes == 52 + 72
