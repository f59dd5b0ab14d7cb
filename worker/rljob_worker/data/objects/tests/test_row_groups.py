"""Parquet in a store: which row groups are read, and when."""

import io
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rljob_worker.data.listing import DataFile
from rljob_worker.data.objects.row_groups import MAX_GROUPS_AT_ONCE, RowGroupSource

GROUP_ROWS = 3


def parquet(num_rows: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"prompt": [f"row {i}" for i in range(num_rows)]}), sink, row_group_size=GROUP_ROWS)
    return sink.getvalue()


class Meeting:
    """A store that answers nobody until so many ask at once, once it waits for that."""

    def __init__(self, data: bytes, num_askers: int) -> None:
        self.data = data
        self.meeting = threading.Barrier(num_askers, timeout=60)
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
    found = source.read(np.array([(0, group, group % GROUP_ROWS) for group in groups]))
    assert found == {"prompt": [f"row {GROUP_ROWS * group + group % GROUP_ROWS}" for group in groups]}
