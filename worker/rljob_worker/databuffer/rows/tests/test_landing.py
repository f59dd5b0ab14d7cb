"""Rows from the wire to their places: what is not as it was announced is named, and nothing of it is kept for good."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.protocol.codec import encode, read_piece_head
from rljob_worker.databuffer.protocol.errors import Bug, Malformed
from rljob_worker.databuffer.protocol.peer_side import PieceHead
from rljob_worker.databuffer.protocol.streams import Held
from rljob_worker.databuffer.rows import segment, stream
from rljob_worker.databuffer.rows.arrangement import Header, arrange
from rljob_worker.databuffer.rows.landing import Landing
from rljob_worker.databuffer.rows.segment import Views
from rljob_worker.databuffer.rows.tests.batches import batch_of, index_of, same, stored
from rljob_worker.errors import PeerLost
from rljob_worker.gather import LONG_BYTES


def header_of(row_ids):
    return Header.of(stored(batch_of(row_ids)), np.arange(len(row_ids)))


def landing_of(header):
    """In a segment of its own; and the segment."""
    arrangement = arrange([header], "a->b")
    target = segment.views(np.zeros(arrangement.contents.num_bytes, np.uint8), 0, arrangement.contents)
    arrangement.write_index(target)
    return Landing(header, target, arrangement.targets[0], "rows of a host"), target


def sent(batch, piece_bytes=1 << 20):
    views = Views(batch.index, batch.columns)
    return list(stream.stream([(views, np.arange(len(batch)))], lambda seconds: None, piece_bytes))


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_rows_that_come_as_they_were_announced_are_there(piece_bytes):
    batch = batch_of([0, 3, 5, 6])
    landing, target = landing_of(header_of([0, 3, 5, 6]))
    for portion in sent(batch, piece_bytes):
        landing.take(portion)
    landing.end()
    assert same(target.as_batch(), batch)


class Noting:
    """A portion that notes where it is brought."""

    def __init__(self, portion):
        self.head, self.num_bytes, self._portion = portion.head, portion.num_bytes, portion

    def into(self, places):
        self.places = places
        self._portion.into(places)


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize(("row_bytes", "is_straight"), [(LONG_BYTES, True), (LONG_BYTES - 8, False)])
def test_long_rows_go_straight_to_their_places_between_those_of_others(ragged, row_bytes, is_straight):
    def made(ids):
        values = np.repeat(np.array(ids), row_bytes // 8)
        column = Column.from_lengths(values, [row_bytes // 8] * len(ids)) if ragged else values.reshape(len(ids), -1)
        return Batch.of(index_of(ids), {"long": column if ragged else Column.fixed(column)})

    hosts = [made([0, 2, 4]), made([1, 3, 5])]
    headers = [Header.of(Views(batch.index, batch.columns), np.arange(3)) for batch in hosts]
    arrangement = arrange(headers, "a->b")
    memory = np.zeros(arrangement.contents.num_bytes, np.uint8)
    target = segment.views(memory, 0, arrangement.contents)
    arrangement.write_index(target)
    for header, rows, batch in zip(headers, arrangement.targets, hosts, strict=True):
        (portion,) = map(Noting, sent(batch))
        Landing(header, target, rows, "it").take(portion)
        here = [np.shares_memory(np.frombuffer(place, np.uint8), memory) for place in portion.places]
        assert here == ([True] * len(here) if is_straight else [False])
    assert same(target.as_batch(), made(range(6)))


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        # rows 3 and 5 have 3 and 1 ids of 4 bytes
        ("ids", Column.from_lengths(np.zeros(9, np.int32), [3, 6]), "ids: rows 3 to 5 came with 36 .*; .* said 16"),
        # the prompt of group 1 has 2 tokens of 8 bytes
        ("prompt", Column.ragged([np.zeros(9)]).per_group_at(np.array([0]), 2), "prompt: .* with 72 .*; .* said 16"),
        ("prompt", Column.ragged([np.zeros(0)]).per_group_at(np.array([0]), 2), "prompt: .* with 0 .*; .* said 16"),
    ],
)
def test_rows_that_contradict_their_header_are_a_bug_of_ours(name, column, words):
    (lies,) = sent(Batch.of(index_of([3, 5]), {**batch_of([3, 5]).columns, name: column}))
    landing, _ = landing_of(header_of([3, 5]))
    with pytest.raises(Bug, match=f"rows of a host: column {words}") as caught:
        landing.take(lies)
    assert caught.value.exit_code == ExitCode.BUG


def test_rows_in_the_place_of_others_are_a_bug_of_ours():
    landing, _ = landing_of(header_of([0, 3, 6]))
    first, second = sent(batch_of([0, 3]), 1)
    landing.take(first)
    landing.take(second)
    (other,) = sent(batch_of([8]))
    with pytest.raises(Bug, match="rows of a host: row 8 came in the place of row 6"):
        landing.take(other)


def test_other_columns_than_those_announced_are_a_bug_of_ours():
    landing, _ = landing_of(header_of([3]))
    (lies,) = sent(batch_of([3]).select(["ids", "fixed"]))
    with pytest.raises(Bug, match="rows of a host: 2 columns came in 16 bytes, not 15"):
        landing.take(lies)


def test_values_of_a_group_that_come_with_another_than_its_first_row_are_a_bug_of_ours():
    columns = {"prompt": Column.ragged([[7, 8]]).per_group_at(np.array([0]), 2)}
    header = Header.of(Views(index_of([3, 4]), columns), np.arange(2))
    lies = Header(header.index, {"prompt": np.array([0, 2])}, header.kinds)
    landing, _ = landing_of(lies)
    with pytest.raises(Bug, match="rows of a host: 16 bytes came for places of 0"):
        landing.take(Held(encode(PieceHead(header.index.row_ids.tobytes(), (16,))), [memoryview(bytes(16))]))


def test_more_or_fewer_rows_than_were_offered_are_a_lost_peer():
    landing, _ = landing_of(header_of([3, 4]))
    with pytest.raises(PeerLost, match="the rows of rows of a host ended after 0 of 2"):
        landing.end()
    (three,) = sent(batch_of([3, 4, 5]))
    with pytest.raises(PeerLost, match="more rows came of rows of a host than the 2 that were offered"):
        landing.take(three)


@given(st.binary(max_size=40))
def test_whatever_the_head_it_is_refused_by_name_or_true(head):
    landing, _ = landing_of(header_of([3]))
    (portion,) = sent(batch_of([3]))
    with pytest.raises((Malformed, Bug, PeerLost)):
        landing.take(Held(head, portion.places))


def test_row_ids_that_are_none_are_refused_by_name():
    landing, _ = landing_of(header_of([3]))
    (portion,) = sent(batch_of([3]))
    head = msgspec.structs.replace(read_piece_head(portion.head), row_ids=b"1234567")
    with pytest.raises(Malformed, match="rows of a host: 7 bytes are no row ids"):
        landing.take(Held(encode(head), portion.places))
