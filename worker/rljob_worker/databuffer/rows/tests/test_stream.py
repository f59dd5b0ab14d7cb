"""Rows of a part as messages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.protocol.codec import read_piece_head
from rljob_worker.databuffer.protocol.errors import Malformed
from rljob_worker.databuffer.rows import stream
from rljob_worker.databuffer.rows.arrangement import Header
from rljob_worker.databuffer.rows.segment import Views
from rljob_worker.databuffer.rows.tests.batches import batch_of, index_of, row_lists, stored
from rljob_worker.gather import LONG_BYTES

ROW_BYTES = 24


def sized(lengths):
    """Rows of one column of bytes."""
    return stored(Batch.of(index_of(range(len(lengths))), {"b": Column.binary([b"x" * n for n in lengths])}))


def cut(views, piece_bytes):
    return [piece.by_row.source.tolist() for piece in stream.pieces(views, np.arange(len(views.index)), piece_bytes)]


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


def rows_in(portion):
    return np.frombuffer(read_piece_head(portion.head).row_ids, np.int64).tolist()


def column_of(portion, views, name):
    """The bytes of one column: columns follow each other by name."""
    head, names = read_piece_head(portion.head), sorted(views.columns)
    first = sum(head.num_bytes[: names.index(name)])
    return b"".join(portion.places)[first : first + head.num_bytes[names.index(name)]]


@given(row_lists.filter(bool), st.integers(1, 2000), st.data())
def test_pieces_hold_every_row_once_and_are_small(row_ids, piece_bytes, data):
    views = stored(batch_of(row_ids))
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, len(row_ids) - 1)))), np.int64)
    portions = [piece.portion() for piece in stream.pieces(views, rows, piece_bytes)]
    assert [row for portion in portions for row in rows_in(portion)] == [row_ids[row] for row in rows]
    num_ragged = sum(column.is_ragged for column in views.columns.values())
    # what a row takes at its place beside its values: its index and its offsets
    beside = ROW_BYTES + 8 * num_ragged
    for portion in portions:
        num_rows = len(rows_in(portion))
        assert num_rows == 1 or portion.num_bytes + beside * num_rows <= piece_bytes
    assert stream.row_bytes(views, rows).sum() == sum(p.num_bytes for p in portions) + beside * len(rows)


@given(row_lists, st.integers(1, 600), st.data())
def test_a_portion_has_the_values_of_its_rows_column_by_column(row_ids, piece_bytes, data):
    batch = batch_of(row_ids)
    views = stored(batch)
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, max(0, len(row_ids) - 1))))), np.int64)[: len(row_ids)]
    portions = [piece.portion() for piece in stream.pieces(views, rows, piece_bytes)]
    taken = batch.take(rows)
    for name, column in taken.columns.items():
        assert b"".join(column_of(p, views, name) for p in portions) == column.values.tobytes(), name


def test_a_group_is_sent_once_however_many_pieces_its_rows_take():
    views = stored(batch_of([3, 4, 5]))
    portions = [piece.portion() for piece in stream.pieces(views, np.array([1, 2]), 1)]
    assert [column_of(p, views, "prompt") for p in portions] == [np.array([1, 1]).tobytes(), b""]


def lies_in(place, values):
    return np.shares_memory(np.frombuffer(place, np.uint8), values) if len(place) else True


def test_neighbours_are_sent_from_where_they_lie():
    views = stored(batch_of(range(12)).select(["ids"]))
    (piece,) = stream.pieces(views, np.arange(3, 9))
    assert all(lies_in(place, views.columns["ids"].values) for place in piece.portion().places)
    (scattered,) = stream.pieces(views, np.array([1, 2, 7]))
    assert not any(lies_in(place, views.columns["ids"].values) for place in scattered.portion().places)


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize(("row_bytes", "num_places"), [(LONG_BYTES, 3), (LONG_BYTES - 8, 1)])
def test_long_rows_are_sent_from_where_they_lie_wherever_that_is(ragged, row_bytes, num_places):
    values = np.arange(6 * row_bytes // 8)
    column = Column.from_lengths(values, [row_bytes // 8] * 6) if ragged else Column.fixed(values.reshape(6, -1))
    views = Views(index_of(range(6)), {"long": column})
    (piece,) = stream.pieces(views, np.array([0, 2, 5]))
    places = piece.portion().places
    assert [lies_in(place, values) for place in places] == [num_places == 3] * num_places
    expected = np.concatenate([values.reshape(6, -1)[row] for row in (0, 2, 5)])
    assert b"".join(places) == expected.tobytes()


def test_a_stream_has_the_rows_in_the_order_of_their_header():
    parts = [(stored(batch_of([4, 7, 9])), np.array([0, 2])), (stored(batch_of([])), np.arange(0))]
    parts.append((stored(batch_of([3, 5])), np.arange(2)))
    seconds = []
    header = stream.header_of(parts)
    assert Header.from_bytes(header.to_bytes(), header.kinds).index.row_ids.tolist() == [4, 9, 3, 5]
    portions = list(stream.stream(parts, seconds.append, piece_bytes=1))
    assert [rows_in(portion) for portion in portions] == [[4], [9], [3], [5]]
    assert len(seconds) == 4 and all(s >= 0 for s in seconds)


def test_a_stream_without_rows_is_none_and_its_header_tells_the_columns():
    parts = [(stored(batch_of([4])), np.arange(0))]
    assert not list(stream.stream(parts, lambda seconds: None))
    header = stream.header_of(parts)
    assert len(header.index) == 0 and list(header.kinds) == list(batch_of([]).columns)


def test_of_parts_without_rows_the_first_decides():
    other = batch_of([]).with_columns({"fixed": Column.fixed(np.zeros(0, np.int64))})
    parts = [(stored(other), np.arange(0)), (stored(batch_of([4])), np.arange(0))]
    assert stream.header_of(parts).kinds["fixed"].dtype == "int64"


def test_a_part_without_rows_does_not_decide_the_columns():
    other = batch_of([]).with_columns({"fixed": Column.fixed(np.zeros(0, np.int64))})
    parts = [(stored(other), np.arange(0)), (stored(batch_of([4])), np.arange(1))]
    (portion,) = stream.stream(parts, lambda seconds: None)
    assert column_of(portion, parts[1][0], "fixed") == np.float32(4.0).tobytes()
    assert stream.header_of(parts).kinds["fixed"].dtype == "float32"


@pytest.mark.parametrize(
    ("sources", "num_bytes"),
    [(0, 16 << 20), (1, 16 << 20), (4, 16 << 20), (17, (64 << 20) // 17), (128, 1 << 19), (999, 1 << 19)],
)
def test_pieces_of_all_sources_together_stay_within_64_mib_while_they_are_not_tiny(sources, num_bytes):
    assert stream.piece_bytes_for(sources) == num_bytes


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
    came = stream.unpacked(stream.packed(selections))
    sent = list(stream.stream(selections, lambda seconds: None))
    assert [(p.head, b"".join(p.places)) for p in came] == [(p.head, b"".join(p.places)) for p in sent]
    assert [row for portion in came for row in rows_in(portion)] == [row_ids[at] for rows in picks for at in rows]


@pytest.mark.parametrize("data", [b"", b"\x91", b"\x91\x92\xc4\x01", b"rows", b"\x91\x01", b"\x80"])
def test_bytes_that_are_no_packed_rows_are_refused_by_name(data):
    with pytest.raises(Malformed, match=f"^{len(data)} bytes are no packed rows: "):
        stream.unpacked(data)


def test_rows_of_all_sources_that_come_with_offers_are_bounded_together():
    assert [stream.few_bytes_for(n) for n in (0, 1, 128, 129, 1024)] == [65536, 65536, 65536, 65027, 8192]
    assert stream.few_bytes_for(1, 100) == 100


def test_a_header_tells_the_bytes_of_its_rows():
    views = sized([10, 20, 30, 40])
    assert Header.of(views, np.array([1, 3])).num_bytes == 52 + 72
