"""An environment that waits in each step, and shows 16 numbers; processes of simulators import nothing else."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np

DIMENSIONS = 7


class WaitingEnvironment:
    """seconds: of a step."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.action_space = SimpleNamespace(low=-np.ones(DIMENSIONS), high=np.ones(DIMENSIONS))
        self._seconds, self._state = seconds, np.zeros(16, np.float32)

    def reset(self, seed: int, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._state = np.full(16, seed % 97, np.float32)
        return self._state, {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._seconds:
            time.sleep(self._seconds)
        self._state = self._state + 0.01
        return self._state, 0.0, False, False, {"success": False}
