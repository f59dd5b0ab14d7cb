import numpy as np

from rljob_worker.stages.rollout import rows_of_groups


def test_rows_count_on_over_the_job():
    # groups 10 and 11 of 2 rows each
    assert rows_of_groups(np.array([10, 11]), 2).tolist() == [20, 21, 22, 23]
