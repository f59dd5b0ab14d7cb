"""The advantage stage and truncated trajectories."""

import numpy as np

from rljob_worker.batch import Batch, Column
from rljob_worker.batch.trajectories import Trajectories
from rljob_worker.stages.advantage import loss_mask


def test_a_trajectory_with_a_row_that_was_cut_off_is_out_of_the_loss():
    # the second row of the first trajectory was cut off, none of the second one's
    columns = {
        "response_mask": Column.from_lengths(np.ones(5, np.uint8), [2, 1, 2]),
        "truncated": Column.fixed(np.array([False, True, False])),
    }
    batch = Batch.build([0, 1, 3], [0, 0, 0], columns)
    assert loss_mask(batch, Trajectories(batch.row_ids, 3)).values.tolist() == [0, 0, 0, 1, 1]
