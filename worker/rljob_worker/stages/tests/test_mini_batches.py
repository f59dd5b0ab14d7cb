"""The mini-batches of an update."""

import numpy as np

from rljob_api.tests.builders import make_job
from rljob_worker.batch import Batch, Column
from rljob_worker.stages.update import mini_batches

SPEC = make_job("data.batchSize=4", "training.miniBatchRows=8").spec
ROWS = np.arange(32, 48)  # step 3 of 4 prompts x 4 responses


def test_a_mini_batch_has_whole_groups_and_each_row_is_in_one():
    parts = mini_batches(Batch.build(ROWS, ROWS // 4, {}), SPEC, step=3)
    assert [len(part) for part in parts] == [8, 8]
    assert sorted(row for part in parts for row in part.row_ids) == ROWS.tolist()
    assert all(len(set(part.group_ids)) == 2 for part in parts)


def test_rows_that_were_not_drawn_are_left_out():
    weights = np.arange(16) % 3
    batch = Batch.build(ROWS, ROWS // 4, {"row_weights": Column.fixed(weights)})
    parts = mini_batches(batch, SPEC, step=3)
    assert sorted(row for part in parts for row in part.row_ids) == ROWS[weights > 0].tolist()
    assert sum(part["row_weights"].values.sum() for part in parts) == weights.sum()
