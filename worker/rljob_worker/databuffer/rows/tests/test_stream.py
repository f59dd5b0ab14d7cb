"""Rows of a part as messages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.rows import stream
from rljob_worker.databuffer.rows.arrangement import Header
from rljob_worker.databuffer.rows.schema import from_arrow
from rljob_worker.databuffer.rows.tests.batches import batch_of, index_of, row_lists, same, stored

ROW_BYTES = 24


def sized(lengths):
    """Rows of one column of bytes."""
    return stored(Batch.of(index_of(range(len(lengths))), {"b": Column.binary([b"x" * n for n in lengths])}))


def cut(views, chunk_bytes):
    return [piece.by_row.source.tolist() for piece in stream.pieces(views, np.arange(len(views.index)), chunk_bytes)]


def test_pieces_are_as_large_as_they_may_be():
    views = sized([10, 20, 30, 40])  # with an offset and the index 42, 52, 62 and 72 bytes
    assert stream.row_bytes(views).tolist() == [42, 52, 62, 72]
    assert cut(views, 94) == [[0, 1], [2], [3]]
    assert cut(views, 93) == [[0], [1], [2], [3]]
    assert cut(views, 156) == [[0, 1, 2], [3]]
    assert cut(views, 228) == [[0, 1, 2, 3]]
    assert cut(views, 134) == [[0, 1], [2, 3]]


def test_a_row_larger_than_a_piece_goes_alone():
    assert cut(sized([1, 500, 1, 1]), 100) == [[0], [1], [2, 3]]
    assert cut(sized([500, 1]), 100) == [[0], [1]]
    assert cut(sized([]), 100) == []


def bytes_of(batch):
    """Of its rows: a ragged column has one offset more."""
    return batch.nbytes - 8 * sum(column.is_ragged for column in batch.columns.values())


@given(row_lists.filter(bool), st.integers(1, 2000), st.data())
def test_pieces_hold_every_row_once_and_are_small(row_ids, chunk_bytes, data):
    views = stored(batch_of(row_ids))
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, len(row_ids) - 1)))), np.int64)
    pieces = stream.pieces(views, rows, chunk_bytes)
    assert [row for piece in pieces for row in piece.batch().row_ids] == [row_ids[row] for row in rows]
    for piece in pieces:
        batch = piece.batch()
        num_ragged = sum(column.is_ragged for column in batch.columns.values())
        # a message has one offset more than rows in every ragged column
        assert len(piece) == 1 or batch.nbytes - 8 * num_ragged <= chunk_bytes
    sizes = stream.row_bytes(views, rows)
    assert sizes.sum() == sum(
        p.batch().nbytes - 8 * sum(c.is_ragged for c in p.batch().columns.values()) for p in pieces
    )


def test_a_group_is_sent_once_however_many_pieces_its_rows_take():
    views = stored(batch_of([3, 4, 5]))
    pieces = [piece.batch() for piece in stream.pieces(views, np.array([1, 2]), 1)]
    assert [piece.columns["prompt"].to_list()[0].tolist() for piece in pieces] == [[1, 1], []]


def test_neighbours_are_sent_from_where_they_lie():
    views = stored(batch_of(range(12)))
    (piece,) = stream.pieces(views, np.arange(3, 9))
    for name, column in piece.batch().columns.items():
        assert np.shares_memory(column.values, views.columns[name].values), name
    (scattered,) = stream.pieces(views, np.array([1, 2, 7]))
    assert not np.shares_memory(scattered.batch().columns["ids"].values, views.columns["ids"].values)


def test_a_stream_has_the_rows_in_the_order_of_their_header():
    parts = [(stored(batch_of([4, 7, 9])), np.array([0, 2])), (stored(batch_of([])), np.arange(0))]
    parts.append((stored(batch_of([3, 5])), np.arange(2)))
    seconds = []
    header = stream.header_of(parts)
    assert Header.from_bytes(header.to_bytes(), header.kinds).index.row_ids.tolist() == [4, 9, 3, 5]
    schema, records = stream.stream(parts, seconds.append, chunk_bytes=1)
    rows = list(records)
    assert all(record.schema == schema for record in rows)
    assert [from_arrow(record).row_ids.tolist() for record in rows] == [[4], [9], [3], [5]]
    assert len(seconds) == 4 and all(s >= 0 for s in seconds)


def test_a_stream_without_rows_tells_the_columns():
    parts = [(stored(batch_of([4])), np.arange(0))]
    schema, records = stream.stream(parts, lambda seconds: None)
    assert not list(records) and schema.names[3:] == list(batch_of([]).columns)
    header = stream.header_of(parts)
    assert len(header.index) == 0 and list(header.kinds) == list(batch_of([]).columns)


def test_of_parts_without_rows_the_first_decides():
    other = batch_of([]).with_columns({"fixed": Column.fixed(np.zeros(0, np.int64))})
    schema, _ = stream.stream(
        [(stored(other), np.arange(0)), (stored(batch_of([4])), np.arange(0))], lambda seconds: None
    )
    assert schema.field("fixed").type == "int64"


def test_a_part_without_rows_does_not_decide_the_schema():
    other = batch_of([]).with_columns({"fixed": Column.fixed(np.zeros(0, np.int64))})
    parts = [(stored(other), np.arange(0)), (stored(batch_of([4])), np.arange(1))]
    schema, records = stream.stream(parts, lambda seconds: None)
    assert schema.field("fixed").type == "float"
    assert from_arrow(next(records))["fixed"].values.tolist() == [4.0]
    assert stream.header_of(parts).kinds["fixed"].dtype == "float32"


@pytest.mark.parametrize(
    ("sources", "num_bytes"),
    [(0, 16 << 20), (1, 16 << 20), (4, 16 << 20), (17, (64 << 20) // 17), (128, 1 << 19), (999, 1 << 19)],
)
def test_chunks_of_all_sources_together_stay_within_64_mib_while_they_are_not_tiny(sources, num_bytes):
    assert stream.chunk_bytes_for(sources) == num_bytes


def test_a_row_takes_its_index_its_values_and_its_offsets():
    views = stored(batch_of([3, 4]).select(["ids", "fixed", "image", "patches", "prompt"]))
    # ids 4 bytes a value, 3 and 0 of them; image 12; patches 16 bytes, 0 and 1; prompt 2 of 8 bytes, with row 3 only
    common = ROW_BYTES + 3 * 8 + 4 + 12
    assert stream.row_bytes(views).tolist() == [common + 12 + 16, common + 16]
    assert stream.row_bytes(views, np.array([1])).tolist() == [common + 16 + 16]


@given(row_lists.filter(bool), st.data())
def test_packed_rows_are_the_rows_of_the_stream(row_ids, data):
    views = stored(batch_of(row_ids))
    picks = [np.array(sorted(data.draw(st.sets(st.integers(0, len(row_ids) - 1)))), np.int64) for _ in range(2)]
    selections = [(views, rows) for rows in picks]
    came = [from_arrow(record) for record in stream.unpacked(stream.packed(selections))]
    sent = [from_arrow(record) for record in stream.stream(selections, lambda seconds: None)[1]]
    assert len(came) == len(sent) and all(same(a, b) for a, b in zip(came, sent, strict=True))
    assert [row for batch in came for row in batch.row_ids] == [row_ids[at] for rows in picks for at in rows]


def test_rows_of_all_sources_that_come_with_offers_are_bounded_together():
    assert [stream.few_bytes_for(n) for n in (0, 1, 128, 129, 1024)] == [65536, 65536, 65536, 65027, 8192]
    assert stream.few_bytes_for(1, 100) == 100


def test_a_header_tells_the_bytes_of_its_rows():
    views = sized([10, 20, 30, 40])
    assert Header.of(views, np.array([1, 3])).num_bytes == 52 + 72
