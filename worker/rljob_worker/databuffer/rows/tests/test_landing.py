"""Rows from the wire to their places: what is damaged, or not as it was announced, is named and kept out."""

import contextlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.batch import Batch, Column
from rljob_worker.batch.arrow import to_record
from rljob_worker.databuffer.protocol.errors import Bug, Damaged
from rljob_worker.databuffer.rows import segment, stream
from rljob_worker.databuffer.rows.arrangement import Header, arrange
from rljob_worker.databuffer.rows.landing import Landing
from rljob_worker.databuffer.rows.segment import Views
from rljob_worker.databuffer.rows.tests.batches import batch_of, index_of, row_lists, same, stored
from rljob_worker.errors import PeerLost


def header_of(row_ids):
    return Header.of(stored(batch_of(row_ids)), np.arange(len(row_ids)))


def landing_of(header):
    """In a segment of its own; and the segment."""
    arrangement = arrange([header], "a->b")
    target = segment.views(np.zeros(arrangement.contents.num_bytes, np.uint8), 0, arrangement.contents)
    arrangement.write_index(target)
    return Landing(header, target, arrangement.targets[0], "rows of a host"), target


def sent(batch, batch_bytes=1 << 20):
    views = Views(batch.index, batch.columns)
    return list(stream.stream([(views, np.arange(len(batch)))], lambda seconds: None, batch_bytes).records)


@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
def test_rows_that_come_as_they_were_announced_are_there(batch_bytes):
    batch = batch_of([0, 3, 5, 6])
    landing, target = landing_of(header_of([0, 3, 5, 6]))
    for record, checksum in sent(batch, batch_bytes):
        landing.take(record, checksum)
    landing.end()
    assert same(target.as_batch(), batch)


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        # rows 3 and 5 have 3 and 1 ids
        ("ids", Column.from_lengths(np.zeros(9, np.int32), [3, 6]), "length of ids 6 came in the place of .* 1"),
        # the prompt of group 1 has 2 tokens
        ("prompt", Column.ragged([np.zeros(9, int)]).per_group_at(np.array([0]), 2), "length of prompt 9 .* 2"),
        ("prompt", Column.ragged([np.zeros(0, int)]).per_group_at(np.array([0]), 2), "length of prompt 0 .* 2"),
    ],
)
def test_rows_that_contradict_their_header_are_a_bug_of_ours(name, column, words):
    (lies,) = sent(Batch.of(index_of([3, 5]), {**batch_of([3, 5]).columns, name: column}))
    landing, _ = landing_of(header_of([3, 5]))
    with pytest.raises(Bug, match=f"rows of a host: {words}") as caught:
        landing.take(*lies)
    assert caught.value.exit_code == ExitCode.BUG


def test_rows_in_the_place_of_others_are_a_bug_of_ours():
    landing, _ = landing_of(header_of([0, 3, 6]))
    for item in sent(batch_of([0, 3]), 1):
        landing.take(*item)
    (other,) = sent(batch_of([8]))
    with pytest.raises(Bug, match="rows of a host: row 8 came in the place of row 6"):
        landing.take(*other)


@pytest.mark.parametrize(("field", "words"), [("group_ids", "group 9"), ("num_tokens", "number of tokens 9")])
def test_another_index_than_the_one_announced_is_a_bug_of_ours(field, words):
    header, batch = header_of([3]), batch_of([3])
    numbers = {"row_ids": batch.row_ids, "group_ids": batch.group_ids, "num_tokens": batch.num_tokens}
    (lies,) = sent(Batch(**{**numbers, field: np.array([9])}, columns=batch.columns))
    landing, _ = landing_of(header)
    with pytest.raises(Bug, match=f"rows of a host: {words} came in the place of"):
        landing.take(*lies)


def test_other_columns_than_those_announced_are_damaged():
    landing, _ = landing_of(header_of([3]))
    (lies,) = sent(batch_of([3]).select(["ids", "fixed"]))
    with pytest.raises(Damaged, match="rows of a host: other columns came than were offered"):
        landing.take(*lies)
    batch = batch_of([3])
    (lies,) = sent(batch.with_columns({"fixed": Column.fixed(batch["fixed"].values.astype(np.float64))}))
    with pytest.raises(Damaged, match="or of other types"):
        landing.take(*lies)


def test_values_of_a_group_that_come_with_another_than_its_first_row_are_a_bug_of_ours():
    columns = {"prompt": Column.from_lengths(np.array([7, 8]), [0, 2])}
    header = Header.of(
        Views(index_of([3, 4]), {"prompt": Column.ragged([[7, 8]]).per_group_at(np.array([0]), 2)}), np.arange(2)
    )
    lies = Header(header.index, {"prompt": np.array([0, 2])}, header.kinds)
    landing, _ = landing_of(lies)
    record = to_record(header.index, columns, header.kinds)
    with pytest.raises(Bug, match="column prompt: values of a group came with another row than its first"):
        landing.take(record, stream.rows_checksum(header.index, columns))


def test_a_landing_of_a_range_takes_its_rows_and_no_others():
    batch, header = batch_of([0, 3, 5, 6]), header_of([0, 3, 5, 6])
    whole, target = landing_of(header)
    first, second, third, fourth = sent(batch, 1)
    for begin, stop, came in ((2, 4, [third, fourth]), (0, 2, [first, second])):
        landing = Landing(header, target, np.arange(4), "rows of a host", begin, stop)
        for item in came[:1]:
            landing.take(*item)
        with pytest.raises(PeerLost, match=f"ended after {begin + 1} of {stop}"):
            landing.end()
        landing.take(*came[1])
        landing.end()
        with pytest.raises(PeerLost, match="more rows came of rows of a host than the 2 that were asked for"):
            landing.take(*first)
    assert same(target.as_batch(), batch)


def test_more_or_fewer_rows_than_were_offered_are_a_lost_peer():
    landing, _ = landing_of(header_of([3, 4]))
    with pytest.raises(PeerLost, match="the rows of rows of a host ended after 0 of 2"):
        landing.end()
    (three,) = sent(batch_of([3, 4, 5]))
    with pytest.raises(PeerLost, match="more rows came of rows of a host than the 2 that were asked for"):
        landing.take(*three)


def test_a_batch_without_its_checksum_is_a_lost_peer():
    landing, _ = landing_of(header_of([3]))
    ((record, checksum),) = sent(batch_of([3]))
    for other, words in ((b"", "sent was none"), (bytes(8), "sent was 0000000000000000")):
        with pytest.raises(PeerLost, match=f"rows of a host: rows came damaged: checksum {checksum.hex()}, {words}"):
            landing.take(record, other)


@given(row_lists.filter(bool), st.data())
def test_no_flipped_bit_goes_unnoticed(row_ids, data):
    """Wherever it is in the message of a record batch: there is an error by name, or the rows are right."""
    batch, header = batch_of(row_ids), header_of(row_ids)
    landing, target = landing_of(header)
    records, num_landed = list(sent(batch)), 0
    for record, checksum in records:
        message = bytearray(record.serialize().to_pybytes())
        bit = data.draw(st.integers(0, 8 * len(message) - 1))
        message[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(pa.ArrowException, OSError, PeerLost, Bug):
            landing.take(pa.ipc.read_record_batch(pa.py_buffer(bytes(message)), record.schema), checksum)
            num_landed += 1
    assert num_landed < len(records) or same(target.as_batch(), batch)
