"""The user's stage of custom-filter.yaml: which questions of a step are learnt from."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rljob_worker.batch import Batch
    from rljob_worker.stages.stage import StageContext


def learnable(batch: "Batch", context: "StageContext", *, least: float, most: float) -> dict[str, np.ndarray]:
    """Keeps questions of whose answers a share between `least` and `most` is right: neither too hard nor too easy."""
    _, group = np.unique(batch.group_ids, return_inverse=True)
    share = np.bincount(group, batch["rewards"].values) / np.bincount(group)
    return {"kept": ((least <= share) & (share <= most))[group]}
