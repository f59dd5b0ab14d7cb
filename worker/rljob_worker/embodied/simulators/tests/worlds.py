"""Environments for tests: a point on a plane, and others that go wrong."""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np


class Plane:
    """A point that goes where actions push it; success within 0.1 of the goal, which follows from the seed."""

    def __init__(self, *, pictures: bool = False, faults: dict[str, Any] | None = None) -> None:
        self.action_space = SimpleNamespace(low=-np.ones(2, np.float32), high=np.ones(2, np.float32))
        self._pictures, self._faults = pictures, faults or {}
        self._place, self._goal, self._task = np.zeros(2), np.zeros(2), ""

    def tasks(self) -> list[dict[str, Any]]:
        return [{"task": name, "instruction": f"go {name}"} for name in ("left", "right")]

    def reset(self, seed: int, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._task = options.get("task", "")
        self._goal = np.random.default_rng(seed).uniform(-1, 1, 2)
        self._place = np.full(2, float(options.get("initial_state", 0)))
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._go_wrong(self._faults.get(self._task, ""))
        self._place = self._place + 0.5 * action
        distance = float(np.abs(self._goal - self._place).max())
        is_done = distance < 0.1
        info = {"mute": {}, "unsure": {"success": "perhaps"}}.get(self._task, {"success": is_done})
        reward = {"nan_reward": float("nan"), "no_reward": None}.get(self._task, -distance)
        return self._observation(), reward, False, False, info

    def _go_wrong(self, fault: str) -> None:
        match fault:
            case "raise":
                raise ValueError("the arm is stuck")
            case "exit":
                sys.exit(3)
            case "ask":
                input("which data set? ")
            case "die":
                os._exit(9)
            case "hang":
                while True:
                    time.sleep(1)

    def _observation(self) -> Any:
        state = np.concatenate([self._place, self._goal]).astype(np.float32)
        match self._task:
            case "nan":
                state[1] = np.nan
            case "longer":
                state = np.concatenate([state, state]) if self._place.any() else state
        if not self._pictures:
            return state
        picture = np.zeros((8, 8, 3), np.uint8)
        picture[tuple(np.clip((self._place * 4 + 4).astype(int), 0, 7))] = 255
        return {"front": picture, "state": state}


def plane(**options: Any) -> Plane:
    return Plane(**options)


def absent() -> None:
    raise ModuleNotFoundError("No module named 'arms'")


def thing() -> object:
    return object()


def discrete() -> Any:
    return SimpleNamespace(reset=None, step=None)


class Listless(Plane):
    tasks = None  # type: ignore[assignment]


def listless() -> Plane:
    return Listless()
