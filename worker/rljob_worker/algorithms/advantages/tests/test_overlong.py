"""The penalty on overlong responses."""

import torch

from rljob_worker.algorithms.advantages.overlong import mask_truncated, soft_overlong_penalty
from rljob_worker.algorithms.tests.builders import ints, rows_of


def test_the_penalty_grows_over_the_buffer():
    # 100 tokens allowed, buffer 20: nothing up to 80, half at 90, all of it at 100 and beyond
    lengths = ints(0, 80, 90, 100, 120)
    result = soft_overlong_penalty(lengths, max_response_tokens=100, buffer_tokens=20, penalty=2.0)
    assert result.tolist() == [0, 0, -1, -2, -2]


def test_trap_23_tokens_of_truncated_rows_leave_the_loss():
    mask = torch.tensor([True, False, True, True])
    assert mask_truncated(mask, torch.tensor([False, True]), rows_of([2, 2])).tolist() == [True, False, False, False]
