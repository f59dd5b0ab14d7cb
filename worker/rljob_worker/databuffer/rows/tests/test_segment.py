"""A batch in shared memory."""

import numpy as np
from hypothesis import given

from rljob_worker.batch import Batch, Column
from rljob_worker.batch.column_kind import ColumnKind
from rljob_worker.databuffer.protocol.codec import encode, read_request
from rljob_worker.databuffer.protocol.worker_calls import SealRows
from rljob_worker.databuffer.rows import segment
from rljob_worker.databuffer.rows.tests.batches import batch_of, index_of, row_lists, same, stored

INT = ColumnKind("int64", "int64", (), True)
FLAG = ColumnKind("bool", "bool", (), False)


@given(row_lists)
def test_a_segment_gives_back_what_was_written_without_a_copy(row_ids):
    batch = batch_of(row_ids)
    views = stored(batch)
    assert same(views.as_batch(), batch)
    memory = views.index.row_ids.base
    assert memory is not None
    assert all(column.values.base is not None for column in views.columns.values())


def test_columns_lie_one_after_the_other_at_steps_of_64_bytes():
    contents = segment.plan_contents(9, {"ids": (INT, 10), "flag": (FLAG, 9), "last": (INT, 0)})
    ids, flag, last = contents.fields
    # three index columns of 72 bytes take 128 each; values 80 -> 128; offsets 80 -> 128; flags 9 -> 64; offsets 128
    assert (ids.values_at, ids.offsets_at) == (384, 512)
    assert (flag.values_at, flag.offsets_at) == (640, None)
    assert (last.values_at, last.offsets_at) == (704, 704)
    assert contents.num_bytes == 832


def test_a_value_of_a_shape_takes_room_for_all_its_numbers():
    patches = ColumnKind("float16", "float16", (2, 3), True)
    (field,) = segment.plan_contents(1, {"patches": (patches, 11)}).fields
    assert (field.values_at, field.offsets_at) == (192, 192 + 192)  # 11 values of 12 bytes are 132


def test_contents_are_told_as_they_are():
    contents = segment.contents_of(batch_of([1, 2, 5]))
    request = SealRows(edge="a->b", step=1, offset=0, contents=contents)
    assert read_request(encode(request)) == request and contents.num_rows == 3


def test_segments_do_not_reach_into_each_other():
    batch = batch_of([1, 2, 5])
    contents = segment.contents_of(batch)
    memory = np.full(contents.num_bytes + 128, 7, np.uint8)
    segment.write(memory, 64, contents, batch)
    assert set(memory[:64]) | set(memory[64 + contents.num_bytes :]) == {7}


def test_a_group_of_eight_keeps_its_prompt_once():
    index = index_of(range(24))
    prompts = Column.ragged([np.arange(1000) + g for g in range(8)])
    heads = np.unique(index.heads())
    batch = Batch.of(index, {"prompt_ids": prompts.per_group_at(heads, 24)})
    # three index columns of 192 bytes, 8 prompts of 8,000 and 25 offsets
    assert segment.contents_of(batch).num_bytes == 3 * 192 + 64_000 + 256
    assert stored(batch).as_batch()["prompt_ids"].lengths.tolist() == [1000] * 24


def test_a_batch_that_two_threads_write_is_the_same(monkeypatch):
    monkeypatch.setattr(segment, "LARGE_BYTES", 1)
    monkeypatch.setattr(segment, "PIECE_BYTES", 24)
    batch = batch_of([0, 1, 2, 5, 9])
    assert same(stored(batch).as_batch(), batch)
    nothing = batch_of([])
    assert same(stored(nothing).as_batch(), nothing)
