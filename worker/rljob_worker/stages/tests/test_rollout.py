import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.stages.rollout import ordinals_of_rank, rows_of_groups


@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 5))
def test_ranks_share_a_step_without_gap_or_overlap(batch_size, dp_size, step):
    shares = [ordinals_of_rank(step, batch_size, rank, dp_size) for rank in range(dp_size)]
    assert np.concatenate(shares).tolist() == list(range((step - 1) * batch_size, step * batch_size))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_rows_count_on_over_the_job():
    # step 3 of batch 4: groups 8..11; rank 1 of 2 has 10 and 11; rows 2 each
    groups = ordinals_of_rank(3, 4, 1, 2)
    assert groups.tolist() == [10, 11]
    assert rows_of_groups(groups, 2).tolist() == [20, 21, 22, 23]
