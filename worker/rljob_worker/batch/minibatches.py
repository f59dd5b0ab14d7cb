"""Which mini-batch (optimizer step) a row belongs to.

Fixed by group id and seed alone, before any balancing, so that neither the data-parallel size nor arrival order changes
which rows share an update. Rows of one group, and so of one trajectory, always stay in one mini-batch.
"""

import numpy as np
from numpy.typing import NDArray


def mini_batch_of(
    group_ids: NDArray[np.int64], *, step: int, batch_size: int, num_mini_batches: int, seed: int
) -> NDArray[np.int64]:
    """Mini-batch of every row.

    group_ids: [rows], prompt ordinals of step `step` (1-based), that is (step-1)*batch_size <= id < step*batch_size.
    Returns [rows], 0 <= value < num_mini_batches; each mini-batch has batch_size / num_mini_batches groups.
    """
    assert batch_size % num_mini_batches == 0, (batch_size, num_mini_batches)
    index = np.asarray(group_ids) - (step - 1) * batch_size
    assert len(index) == 0 or (index.min() >= 0 and index.max() < batch_size), "a group of another step"
    order = np.random.default_rng((seed, step)).permutation(batch_size)
    return order[index] // (batch_size // num_mini_batches)
