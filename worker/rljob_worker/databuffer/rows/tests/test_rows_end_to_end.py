"""Bytes of a batch: in the arena, on the wire, gathered from several sources."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.rows import segment, stream
from rljob_worker.databuffer.rows.arrangement import Header, arrange, place
from rljob_worker.databuffer.rows.schema import from_arrow, kind_of, to_arrow
from rljob_worker.databuffer.tests.gang import same
from rljob_worker.errors import BadData


def batch_of(row_ids: list[int]) -> Batch:
    """One column of every kind; values tell their row."""
    ids = np.asarray(row_ids, np.int64)
    columns = {
        "ids": Column.ragged([np.arange(r % 4) + r for r in row_ids], "int32"),
        "bf16": Column.ragged([np.full(r % 3, r % 1000) for r in row_ids], "bfloat16"),
        "text": Column.strings(["é" * (r % 3) for r in row_ids]),
        "fixed": Column.fixed(ids.astype(np.float32)),
        "image": Column.fixed((ids[:, None, None] + np.arange(6).reshape(2, 3)).astype(np.float16)),
        "frames": Column.from_lengths(np.repeat(ids, ids % 3)[:, None] + np.arange(2), ids % 3),
        "flag": Column.fixed(ids % 2 == 0),
        "flags": Column.ragged([np.full(r % 2, True) for r in row_ids], "bool"),
    }
    return Batch.build(ids, ids // 2, columns, ids % 7)


def stored(batch: Batch) -> segment.Views:
    memory = np.zeros(1 << 18, np.uint8)
    contents = segment.contents_of(batch)
    segment.write(memory, 4096, contents, batch)
    return segment.views(memory, 4096, segment.Contents.from_json(contents.to_json()))


row_lists = st.lists(st.integers(0, 10_000), unique=True, max_size=30).map(sorted)


@given(row_lists)
def test_a_segment_gives_back_what_was_written_without_a_copy(row_ids):
    batch = batch_of(row_ids)
    views = stored(batch)
    assert same(views.as_batch(), batch)
    assert all(column.values.base is not None for column in views.columns.values())


@given(row_lists)
def test_arrow_gives_back_what_was_sent(row_ids):
    batch = batch_of(row_ids)
    record = to_arrow(batch)
    record.validate(full=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, record.schema) as writer:
        writer.write_batch(record)
    assert same(from_arrow(pa.ipc.open_stream(sink.getvalue()).read_next_batch()), batch)


def test_types_on_the_wire_are_arrows_own():
    schema = to_arrow(batch_of([1, 2])).schema
    assert schema.field("text").type == pa.large_utf8()
    assert pa.types.is_large_list(schema.field("ids").type)
    assert schema.field("bf16").metadata[b"dtype"] == b"bfloat16"
    assert schema.field("image").type.list_size == 6


def test_a_slice_of_a_record_batch_is_read_right():
    batch = batch_of([1, 2, 3, 5, 8])
    assert same(from_arrow(to_arrow(batch).slice(1, 3)), batch.take([1, 2, 3]))


def test_objects_are_refused():
    with pytest.raises(BadData, match="a column of object values cannot cross"):
        kind_of(Column(np.array([{}], object), None, "object"))


@settings(max_examples=60)
@given(row_lists, st.integers(1, 4), st.randoms(use_true_random=False), st.integers(1, 400))
def test_rows_of_several_sources_are_assembled_in_row_order(row_ids, num_sources, random, chunk_bytes):
    """What pull and rows do together: select at the source, cut into pieces, place at the consumer."""
    owner = [random.randrange(num_sources) for _ in row_ids]
    wanted = [random.random() < 0.7 for _ in row_ids]
    sources = []
    for number in range(num_sources):
        mine = [(row, want) for row, who, want in zip(row_ids, owner, wanted, strict=True) if who == number]
        views = stored(batch_of([row for row, _ in mine]))
        sources.append((views, np.flatnonzero([want for _, want in mine])))
    arrangement = arrange([Header.of(*source) for source in sources], "a->b")
    memory = np.zeros(1 << 18, np.uint8)
    target = segment.views(memory, 0, arrangement.contents)
    arrangement.write_index(target)
    for (views, positions), targets in zip(sources, arrangement.targets, strict=True):
        done = 0
        for piece in stream.pieces(views, positions, chunk_bytes):
            place(
                target, targets[done : done + len(piece)], stream.take_rows(views.columns, piece), np.arange(len(piece))
            )
            done += len(piece)
        assert done == len(positions)
    expected = [row for row, want in zip(row_ids, wanted, strict=True) if want]
    assert same(target.as_batch(), batch_of(expected))


@given(row_lists.filter(bool), st.integers(1, 2000))
def test_pieces_are_small_and_whole(row_ids, chunk_bytes):
    views = stored(batch_of(row_ids))
    pieces = stream.pieces(views, np.arange(len(row_ids)), chunk_bytes)
    assert np.concatenate(pieces).tolist() == list(range(len(row_ids)))
    sizes = stream.row_bytes(views)
    assert all(len(piece) == 1 or sizes[piece].sum() <= chunk_bytes for piece in pieces)
    assert all(len(piece) for piece in pieces)


def test_a_row_from_two_producers_is_refused():
    headers = [Header.of(stored(batch_of(ids)), np.arange(2)) for ids in ([1, 2], [2, 3])]
    with pytest.raises(BadData, match="edge a->b: row 2 was put by two producers"):
        arrange(headers, "a->b")


def test_producers_that_disagree_on_a_dtype_are_named():
    one, two = batch_of([1]), batch_of([2])
    other = two.with_columns({"fixed": Column.fixed(np.zeros(1, np.int64))})
    headers = [Header.of(stored(batch), np.arange(1)) for batch in (one, other)]
    with pytest.raises(BadData, match=r"column\(s\) fixed: fixed float32 and fixed int64"):
        arrange(headers, "a->b")


def test_a_producer_without_rows_does_not_decide_the_dtype():
    empty = batch_of([]).with_columns({"fixed": Column.fixed(np.zeros(0, np.int64))})
    headers = [Header.of(stored(empty), np.arange(0)), Header.of(stored(batch_of([4])), np.arange(1))]
    assert arrange(headers, "a->b").header.kinds["fixed"].dtype == "float32"
