"""A RewardRunner without processes: rewards are computed when they are collected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rljob_worker.rewards.results import RewardResult

Row = Mapping[str, Any]


class RewardsHere:
    """One reward, as a function of the row; `begun` holds the rows of each call of `begin`."""

    def __init__(self, reward: Callable[[Row], float | dict[str, Any]]) -> None:
        self._reward = reward
        self._rows: dict[int, Row] = {}
        self.begun: list[list[int]] = []

    def begin(self, rows: Sequence[Row]) -> None:
        assert self._rows.keys().isdisjoint(row["row_id"] for row in rows), "begun twice"
        self._rows |= {row["row_id"]: row for row in rows}
        self.begun.append([row["row_id"] for row in rows])

    def collect(self, row_ids: Sequence[int], *, exactly: bool = False) -> RewardResult:
        assert set(row_ids) == self._rows.keys(), "rows are collected once, all that were begun"
        result = [self._reward(self._rows.pop(row_id)) for row_id in row_ids]
        said = [item if isinstance(item, dict) else {"reward": item} for item in result]
        rewards = np.array([item["reward"] for item in said], float).reshape(-1, 1)
        answers = {at: item["answer"] for at, item in enumerate(said) if "answer" in item}
        return RewardResult(rewards, rewards[:, 0], {}, (), answers)
