"""Rows beyond 2^31 values and bytes, in sparse files with only a few pages ever touched."""

import numpy as np
import pyarrow as pa

from rljob_worker.batch.arrow import from_arrow, to_arrow, to_record
from rljob_worker.batch.column_kind import ColumnKind
from rljob_worker.batch.row_index import RowIndex
from rljob_worker.databuffer.rows import segment, stream
from rljob_worker.databuffer.rows.arrangement import Header, arrange
from rljob_worker.databuffer.rows.landing import Landing
from rljob_worker.databuffer.store.segment_files import Allocator, SegmentFile, mapped

HUGE = (1 << 31) + 5
KINDS = {
    "ids": ColumnKind("int32", "int32", (), True),
    "frames": ColumnKind("uint8", "uint8", (2,), True),
    "text": ColumnKind("utf8", "uint8", (), True),
    "last": ColumnKind("float64", "float64", (), False),
}
LENGTHS = np.array([HUGE, 1, 0, 2, 3])
"""Of every ragged column: what follows the first row lies beyond 2^31 values, and after the first column beyond 2^33
bytes."""


def sparse(path, num_bytes):
    """A sparse file of this size that takes no space, as the memory of an arena."""
    with path.open("wb") as file:
        file.truncate(num_bytes)
    return mapped([SegmentFile(path, num_bytes)], writable=True)


def produced(path):
    """A segment of five rows at an offset that another one of its size has pushed out; the values tell their row."""
    ragged = [name for name, kind in KINDS.items() if kind.ragged]
    num_values = {name: int(LENGTHS.sum()) if name in ragged else len(LENGTHS) for name in KINDS}
    contents = segment.plan_contents(len(LENGTHS), {name: (KINDS[name], num_values[name]) for name in KINDS})
    arena = Allocator(3 * contents.num_bytes)
    arena.allocate(contents.num_bytes)
    offset = arena.allocate(contents.num_bytes)
    views = segment.views(sparse(path, arena.capacity), offset, contents)
    index = np.arange(len(LENGTHS))
    views.write_index(RowIndex(10 + index, index // 2, LENGTHS))
    for name in ragged:
        column = views.columns[name]
        column.offsets[:] = [0, *np.cumsum(LENGTHS)]
        for row in index[1:]:
            column.values[column.offsets[row] : column.offsets[row + 1]] = ord("a") + row
    views.columns["last"].values[:] = index
    return views


def assert_holds(columns, expected):
    """Rows `expected` of what `produced` made."""
    assert [columns["text"].row(i) for i in range(len(expected))] == [chr(ord("a") + r) * LENGTHS[r] for r in expected]
    for name in ("ids", "frames"):
        assert columns[name].lengths.tolist() == LENGTHS[expected].tolist()
        values = np.repeat(ord("a") + np.array(expected), LENGTHS[expected])
        assert columns[name].values.reshape(len(values), -1)[:, 0].tolist() == values.tolist()
    assert columns["last"].values.tolist() == expected


def test_rows_behind_a_huge_one_are_taken_from_a_segment_and_from_arrow(tmp_path):
    views = produced(tmp_path / "arena")
    assert_holds(views.as_batch().take([1, 3, 4]).columns, [1, 3, 4])
    record = to_arrow(views.as_batch())
    assert_holds(from_arrow(record.slice(3, 2)).columns, [3, 4])
    assert record.column(record.schema.get_field_index("text"))[4] == pa.scalar("eee", pa.large_utf8())


def test_rows_behind_a_huge_one_reach_a_segment_of_a_consumer(tmp_path):
    views = produced(tmp_path / "producer")
    everything = np.arange(len(LENGTHS))
    # 4 + 2 + 1 bytes a value of the ragged columns with 8 of an offset each, 8 of the fixed one and 24 of the index
    assert stream.bytes_per_row(views).tolist() == [7 * length + 3 * 8 + 8 + 24 for length in LENGTHS]
    part = stream.PartRows(views, everything)
    assert part.cuts() == [(0, 1), (1, 5)]
    header = Header.of(views, everything)
    received = Header.from_bytes(header.to_bytes(), header.kinds)
    arrangement = arrange([received], "a->b")
    memory = sparse(tmp_path / "consumer", arrangement.contents.num_bytes)
    target = segment.views(memory, 0, arrangement.contents)
    arrangement.write_index(target)
    after_the_huge = received.take(np.arange(1, 5))
    landing = Landing(after_the_huge, target, arrangement.targets[0][1:], "rows of a host")
    index, columns = part.gather(1, 5)
    landing.take(to_record(index, columns, header.kinds), stream.rows_checksum(index, columns))
    assert target.index.num_tokens.tolist() == LENGTHS.tolist()
    assert target.columns["ids"].offsets.tolist() == [0, HUGE, HUGE + 1, HUGE + 1, HUGE + 3, HUGE + 6]
    assert_holds(target.as_batch().take([1, 2, 3, 4]).columns, [1, 2, 3, 4])
    taken = sum((tmp_path / name).stat().st_blocks * 512 for name in ("producer", "consumer"))
    assert taken < 1 << 20
