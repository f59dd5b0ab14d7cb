"""The user's stages of custom-stage.yaml.

A stage is called once a step on every worker, with that worker's rows and the columns of its `reads`, and returns the
columns of its `writes`, one value per row.
"""

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rljob_worker.batch import Batch
    from rljob_worker.stages.stage import StageContext

_STEP = re.compile(r"(\d+)([-+*])(\d+)=(\d+)")


def working(batch: "Batch", context: "StageContext") -> dict[str, np.ndarray]:
    """1 when an answer shows at least two steps and every step is true, like `3*4=12` and `12+5=17`."""
    return {"working_reward": np.array([_is_true_working(text) for text in _texts(batch, context)], np.float32)}


def brevity(batch: "Batch", context: "StageContext", *, free_tokens: int) -> dict[str, np.ndarray]:
    """0 up to `free_tokens`, then down by 0.1 with every token."""
    excess = np.maximum(batch["response_ids"].lengths - free_tokens, 0)
    return {"brevity_reward": (-0.1 * excess).astype(np.float32)}


def total(
    batch: "Batch", context: "StageContext", *, working_weight: float, brevity_weight: float
) -> dict[str, np.ndarray]:
    """The join: what the advantages are made of."""
    extra = working_weight * batch["working_reward"].values + brevity_weight * batch["brevity_reward"].values
    return {"total_rewards": batch["rewards"].values + extra}


def _texts(batch: "Batch", context: "StageContext") -> list[str]:
    responses = batch["response_ids"]
    return [context.decode(responses.row(row)) for row in range(len(batch))]


def _is_true_working(text: str) -> bool:
    steps = _STEP.findall(text)
    return len(steps) >= 2 and all(_apply(int(left), sign, int(right)) == int(end) for left, sign, right, end in steps)


def _apply(left: int, sign: str, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right}[sign]
