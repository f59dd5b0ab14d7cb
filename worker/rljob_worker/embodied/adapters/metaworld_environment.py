"""Tasks of Meta-World 3.0.0: a Sawyer arm on a table, state or pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rljob_worker.embodied.adapters.gymnasium_environment import MUJOCO
from rljob_worker.embodied.adapters.packages import imported
from rljob_worker.errors import InvalidJob

PLACES_SEED = 42
"""Draws the places that objects and goals of a task may have: initial states mean the same in every run."""
CAMERA = "camera"


class MetaWorldEnvironment:
    """Environments of some tasks, each made when it is first played."""

    def __init__(self, tasks: Sequence[str], cameras: Sequence[str]) -> None:
        """Raises InvalidJob for a task that there is not."""
        self._package = imported("metaworld", f"'metaworld==3.0.0' {MUJOCO}")
        self._tasks, self._cameras = list(tasks), list(cameras)
        if len(self._cameras) > 1:
            raise InvalidJob(f"rollout.simulator.options.cameras: an environment draws one picture, not {cameras}")
        self._environments: dict[str, tuple[Any, Sequence[Any]]] = {}
        self.action_space = self._environment(self._tasks[0])[0].action_space
        self._current: Any = None

    def reset(self, seed: int, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Begin. options: `task`, without it the first; `initial_state`, which of the places of objects and goal that
        the task has, by default one that follows from the seed."""
        environment, places = self._environment(options.get("task", self._tasks[0]))
        place = int(options.get("initial_state", seed)) % len(places)
        environment.set_task(places[place])
        environment.seed(seed)
        observation, info = environment.reset()
        self._current = environment
        return self._seen(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As gymnasium has it."""
        observation, reward, terminated, truncated, info = self._current.step(action)
        return self._seen(observation), reward, terminated, truncated, info

    def tasks(self) -> list[dict[str, str]]:
        """The job's tasks, with their names as instructions."""
        return [{"task": name, "instruction": name.rpartition("-v")[0].replace("-", " ")} for name in self._tasks]

    def close(self) -> None:
        """End what it holds."""
        for environment, _ in self._environments.values():
            environment.close()

    def _environment(self, task: str) -> tuple[Any, Sequence[Any]]:
        if task not in self._environments:
            try:
                benchmark = self._package.MT1(task, seed=PLACES_SEED)
            except (ValueError, KeyError) as error:
                raise InvalidJob(f"rollout.simulator: Meta-World has no task {task!r}: {error}") from error
            drawn = {"render_mode": "rgb_array", "camera_name": self._cameras[0]} if self._cameras else {}
            self._environments[task] = (benchmark.train_classes[task](**drawn), benchmark.train_tasks)
        return self._environments[task]

    def _seen(self, state: Any) -> dict[str, Any]:
        if not self._cameras:
            return {"state": state}
        return {"state": state, self._cameras[0]: np.ascontiguousarray(self._current.render())}


def metaworld(tasks: Sequence[str], *, cameras: Sequence[str] = ()) -> MetaWorldEnvironment:
    """Tasks of Meta-World such as reach-v3. cameras: one camera of the package, such as corner2, whose pictures
    `rollout.simulator.cameras` names; empty: state alone. Raises InvalidJob."""
    if not tasks:
        raise InvalidJob("rollout.simulator.options.tasks: name a task, such as reach-v3")
    return MetaWorldEnvironment(tasks, cameras)
