"""Parquet in a store: which row groups are read, and when."""

import errno
import io
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.data.listing import DataFile
from rljob_worker.data.objects.row_groups import MAX_GROUPS_AT_ONCE, ByteCache, RowGroupSource
from rljob_worker.errors import BadData, StorageError

GROUP_ROWS = 3


def parquet(num_rows: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"prompt": [f"row {i}" for i in range(num_rows)]}), sink, row_group_size=GROUP_ROWS)
    return sink.getvalue()


def opened(data: bytes) -> RowGroupSource:
    file = DataFile("s3://data/a.parquet", len(data), "v1")
    return RowGroupSource("a", file.path, (file,), ("prompt",), Meeting(data, 1))


@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip"])
def test_a_damaged_page_is_a_file_that_cannot_be_read(codec: str):
    sink = io.BytesIO()
    pq.write_table(pa.table({"prompt": [f"row {i}" for i in range(1000)]}), sink, compression=codec)
    data = bytearray(sink.getvalue())
    data[200:260] = b"x" * 60
    with pytest.raises(BadData, match=r"s3://data/a\.parquet cannot be read as Parquet: \w"):
        list(opened(bytes(data)).scan())


def test_text_that_is_none_is_named_with_its_row():
    prompts = pa.StringArray.from_buffers(2, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff"))
    sink = io.BytesIO()
    pq.write_table(pa.table({"prompt": prompts}), sink)
    with pytest.raises(BadData, match=r"row 2 of s3://data/a\.parquet holds text that is not UTF-8: invalid start"):
        list(opened(sink.getvalue()).scan())


@pytest.mark.parametrize("error", [StorageError("a full disk"), OSError(errno.EIO, "of the system")])
def test_what_is_no_fault_of_the_file_is_not_blamed_on_it(error: OSError):
    class Failing:
        def read(self, spans):
            raise error

    file = DataFile("s3://data/a.parquet", 1000, "v1")
    with pytest.raises(type(error), match=str(error.args[-1])):
        list(RowGroupSource("a", file.path, (file,), ("prompt",), Failing()).scan())


class Meeting:
    """A store that answers nobody until so many ask at once, once it waits for that."""

    def __init__(self, data: bytes, num_askers: int) -> None:
        self.data = data
        self.meeting = threading.Barrier(num_askers, timeout=TEST_TIMEOUT_SECONDS)
        self.waits = False

    def read(self, spans):
        if self.waits:
            self.meeting.wait()
        return [self.data[span.start : span.stop] for span in spans]


def test_the_row_groups_of_a_step_are_asked_for_at_once():
    data = parquet(GROUP_ROWS * (1 + MAX_GROUPS_AT_ONCE))
    store = Meeting(data, MAX_GROUPS_AT_ONCE)
    file = DataFile("s3://data/long.parquet", len(data), "v1")
    source = RowGroupSource("long", file.path, (file,), ("prompt",), store)
    assert source.read(np.array([(0, 0, 1)])) == {"prompt": ["row 1"]}  # the footer, and a group that is kept
    store.waits = True
    # one row of every group, the last group first
    groups = range(MAX_GROUPS_AT_ONCE, -1, -1)
    result = source.read(np.array([(0, group, group % GROUP_ROWS) for group in groups]))
    assert result == {"prompt": [f"row {GROUP_ROWS * group + group % GROUP_ROWS}" for group in groups]}


def find(cache, key, size):
    """What the cache hands out, and whether it had to be made."""
    made = []
    value = cache.find_or_make(key, lambda: made.append(key) or (key, size), lambda it: it[1])
    return value, bool(made)


def test_what_was_used_last_stays_within_the_bytes():
    cache = ByteCache(10)
    assert find(cache, "a", 4) == (("a", 4), True)
    assert find(cache, "b", 4) == (("b", 4), True)
    assert find(cache, "a", 4) == (("a", 4), False)
    assert find(cache, "c", 4) == (("c", 4), True)  # 12 bytes: b goes, which was used longest ago
    assert [find(cache, key, 4)[1] for key in "ac"] == [False, False]
    assert find(cache, "b", 4)[1]


def test_what_is_larger_than_all_of_it_is_handed_out_and_not_kept():
    cache = ByteCache(10)
    assert find(cache, "huge", 11) == (("huge", 11), True)
    assert find(cache, "huge", 11) == (("huge", 11), True)
    assert find(cache, "a", 10)[1] and not find(cache, "a", 10)[1]
