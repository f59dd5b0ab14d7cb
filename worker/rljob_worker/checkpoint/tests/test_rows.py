"""Rows that a checkpoint holds, read by another number of ranks."""

import numpy as np

from rljob_worker.batch import Batch, Column
from rljob_worker.checkpoint.manifest import directory_name
from rljob_worker.checkpoint.writer import RankFiles, RankPart, StageRows, packed_rows, read_rows
from rljob_worker.rundir.ownership import Owner


def rows_of(dp_rank, count=2):
    """Rows that tell whose they were."""
    ids = 10 * dp_rank + np.arange(count)
    columns = {
        "response_ids": Column.ragged([np.full(1 + i % 2, i) for i in ids]),
        "answer": Column.strings(str(i) for i in ids),
    }
    return Batch.build(ids, ids // 2, columns)


def written(directory, num_ranks):
    for dp_rank in range(num_ranks):
        name, content = packed_rows(StageRows("sample", dp_rank, rows_of(dp_rank)))
        (directory / name).write_bytes(content)


def ids_read(directory, dp_rank, dp_size):
    return [part.row_ids.tolist() for part in read_rows(directory, "sample", dp_rank, dp_size)]


def test_as_many_ranks_read_their_own_rows(tmp_path):
    written(tmp_path, 2)
    (part,) = read_rows(tmp_path, "sample", 1, 2)
    assert part.row_ids.tolist() == [10, 11]
    assert [ids.tolist() for ids in part["response_ids"].to_list()] == [[10], [11, 11]]
    assert part["answer"].to_list() == ["10", "11"]


def test_rows_that_stages_hold_are_part_of_a_ranks_checkpoint(tmp_path):
    files = RankFiles(tmp_path, Owner(1), "train", 1)
    files.write(4, RankPart.copy({}, {}, [StageRows("sample", 1, rows_of(1)), StageRows("another", 1, rows_of(3))]))
    checkpoint = tmp_path / "checkpoints" / directory_name(4, Owner(1))
    assert ids_read(checkpoint, 1, 2) == [[10, 11]]
    assert [part.row_ids.tolist() for part in read_rows(checkpoint, "another", 1, 2)] == [[30, 31]]


def test_fewer_ranks_read_those_of_the_ones_that_are_gone_and_more_read_none(tmp_path):
    written(tmp_path, 5)
    assert ids_read(tmp_path, 0, 2) == [[0, 1], [20, 21], [40, 41]]
    assert ids_read(tmp_path, 1, 2) == [[10, 11], [30, 31]]
    assert ids_read(tmp_path, 6, 7) == []


def test_a_stage_reads_its_own_rows_alone(tmp_path):
    written(tmp_path, 1)
    assert read_rows(tmp_path, "another", 0, 1) == []
