"""Random ragged batches that both sides read, float64, packed as ours; numpy only, for two venvs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.generic]]


def ordinary(seed: int) -> Arrays:
    """Groups of two to six rows, one to fourteen tokens, a quarter of them observations, ratios within e^±1.5."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 7, 8)
    lengths = random.integers(1, 15, sizes.sum())
    arrays = _tokens(random, lengths, spread=0.5)
    mask = random.random(lengths.sum()) > 0.25
    mask[np.cumsum(lengths) - 1] = True  # no row without an action
    return arrays | {
        "lengths": lengths,
        "group_ids": np.repeat(random.permutation(8) * 10, sizes),
        "mask": mask.astype(np.int64),
        "rewards": np.round(random.normal(size=len(lengths)), 3),
        "baseline_rewards": random.normal(size=len(lengths)),
    }


def edge(seed: int) -> Arrays:
    """What systems disagree on: a group of one, a group of equal rewards, a row without actions, ratios of e^±25."""
    random = np.random.default_rng(seed)
    lengths = np.array([4, 3, 6, 2, 5, 7, 3, 4, 6])
    arrays = _tokens(random, lengths, spread=8.0)
    mask = np.ones(lengths.sum(), np.int64)
    mask[7:13] = 0  # row 2
    return arrays | {
        "lengths": lengths,
        "group_ids": np.array([3, 3, 3, 3, 8, 5, 5, 5, 5]),
        "mask": mask,
        "rewards": np.array([1.0, 0.0, 0.5, 0.25, 0.7, 0.1, 0.1, 0.1, 0.1]),
        "baseline_rewards": random.normal(size=len(lengths)),
    }


def _tokens(random: np.random.Generator, lengths: NDArray[np.int64], spread: float) -> Arrays:
    count = int(lengths.sum())
    log_probs = -random.exponential(size=count) - 0.05
    row = np.repeat(np.arange(len(lengths)), lengths)
    return {
        "log_probs": log_probs,
        "old_log_probs": np.minimum(log_probs + spread * random.normal(size=count), -1e-3),
        "ref_log_probs": log_probs + spread * random.normal(size=count),
        "rollout_log_probs": log_probs + 0.3 * random.normal(size=count),
        "advantages": random.normal(size=count),
        "row_advantages": random.normal(size=len(lengths))[row],
        "values": random.normal(size=count),
        "old_values": random.normal(size=count),
        "returns": random.normal(size=count),
        "logits": 2.0 * random.normal(size=(count, 5)),
    }


BATCHES = {"ordinary": ordinary, "edge": edge}
