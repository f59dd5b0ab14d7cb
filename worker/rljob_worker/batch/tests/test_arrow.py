"""A batch as Arrow and back."""

import numpy as np
import pyarrow as pa
from hypothesis import given

from rljob_worker.batch import Batch, Column
from rljob_worker.batch.arrow import from_arrow, kind_of_field, to_arrow
from rljob_worker.batch.column_kind import ColumnKind, column_kind_of
from rljob_worker.databuffer.rows.tests.batches import batch_of, row_lists, same


@given(row_lists)
def test_arrow_gives_back_what_was_kept(row_ids):
    batch = batch_of(row_ids)
    record = to_arrow(batch)
    record.validate(full=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, record.schema) as writer:
        writer.write_batch(record)
    assert same(from_arrow(pa.ipc.open_stream(sink.getvalue()).read_next_batch()), batch)


def test_nothing_is_copied():
    batch = batch_of([1, 2, 3])
    back = from_arrow(to_arrow(batch))
    for name, column in back.columns.items():
        assert np.shares_memory(column.values, batch.columns[name].values), name


def test_types_are_arrows_own():
    schema = to_arrow(batch_of([1, 2])).schema
    assert [field.name for field in schema][:3] == ["row_id", "group_id", "num_tokens"]
    assert schema.field("text").type == schema.field("answer").type == pa.large_utf8()
    assert schema.field("bytes").type == schema.field("picture").type == pa.large_binary()
    assert schema.field("ids").type == pa.large_list(pa.field("item", pa.int32(), nullable=False))
    assert schema.field("bf16").type.value_type == schema.field("scale").type == pa.uint16()
    assert schema.field("fp8").type.value_type == schema.field("flag").type == pa.uint8()
    assert schema.field("image").type.list_size == 6
    assert schema.field("patches").type.value_type.list_size == 4
    assert not any(field.nullable for field in schema)


def kinds_in(schema):
    return {field.name: kind_of_field(field) for field in list(schema)[3:]}  # after the index


def test_the_schema_alone_tells_the_kinds():
    batch = batch_of([1, 2])
    kinds = kinds_in(to_arrow(batch).schema)
    assert kinds == {name: column_kind_of(column) for name, column in batch.columns.items()}
    assert kinds["bf16"] == ColumnKind("bfloat16", "uint16", (), True)
    assert kinds["fp8"] == ColumnKind("float8_e4m3fn", "uint8", (), True)
    assert kinds["image"] == ColumnKind("float16", "float16", (2, 3), False)
    assert kinds["prompt"] == ColumnKind("int64", "int64", (), True, per_group=True)
    assert kinds["flags"] == ColumnKind("bool", "bool", (), True)


def test_a_slice_of_a_record_batch_is_read_right():
    batch = Batch.of(batch_of([1, 2, 3, 5, 8]).index, batch_of([1, 2, 3, 5, 8]).columns)
    by_row = batch.select(name for name, column in batch.columns.items() if not column.per_group)
    assert same(from_arrow(to_arrow(by_row).slice(1, 3)), by_row.take([1, 2, 3]))


def test_values_that_do_not_lie_in_order_are_kept_in_order():
    index = batch_of([1, 2]).index
    turned = Column(np.arange(6).reshape(3, 2).T, None, "int64")
    back = from_arrow(to_arrow(Batch.of(index, {"turned": turned})))
    assert back["turned"].values.tolist() == [[0, 2, 4], [1, 3, 5]]
