"""Tasks of ManiSkill 3. Not run here: it needs a Vulkan device; what is known is its public API.

ManiSkill computes with batches of tensors; a simulator here is one environment, num_envs 1, whose tensors lose that
axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rljob_worker.embodied.adapters.packages import imported
from rljob_worker.embodied.simulators.settings import FIELD
from rljob_worker.errors import NotHere

INSTALL = "'mani-skill==3.0.1'"


class ManiSkillEnvironment:
    """One task."""

    def __init__(self, environment: Any, task: str, instruction: str) -> None:
        self._environment, self._task, self._instruction = environment, task, instruction
        self.action_space = environment.unwrapped.single_action_space

    def reset(self, seed: int, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of this seed."""
        observation, _ = self._environment.reset(seed=seed)
        return seen(observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As gymnasium has it. `terminated` is left to what is done with success."""
        observation, reward, terminated, truncated, info = self._environment.step(np.asarray(action)[None])
        said = {} if "success" not in info else {"success": bool(_alone(info["success"]))}
        is_failed = "fail" in info and bool(_alone(info["fail"]))
        is_over = is_failed or (bool(_alone(terminated)) and not said.get("success", False))
        return seen(observation), float(_alone(reward)), is_over, bool(_alone(truncated)), said

    def tasks(self) -> list[dict[str, str]]:
        """The one that there is."""
        return [{"task": self._task, "instruction": self._instruction}]

    def close(self) -> None:
        """End what it holds."""
        self._environment.close()


def maniskill(id: str, *, instruction: str | None = None, **options: Any) -> ManiSkillEnvironment:
    """A task of ManiSkill such as PickCube-v1. options: of its `gym.make`, such as obs_mode and control_mode. A picture
    is called as its camera. Raises InvalidJob."""
    imported("mani_skill.envs", INSTALL)
    module = imported("gymnasium", "gymnasium")
    try:
        environment = module.make(id, num_envs=1, **options)
    except RuntimeError as error:
        if "vulkan" not in str(error).lower():
            raise
        raise NotHere(
            f"{FIELD}.run: ManiSkill needs a Vulkan device, which this machine does not have: {error}"
        ) from error
    return ManiSkillEnvironment(environment, id, instruction or id)


def seen(observation: Any) -> dict[str, Any]:
    """Pictures by camera, and the numbers of everything else as the state."""
    if not isinstance(observation, Mapping):
        return {"state": _alone(observation)}
    sensors = observation.get("sensor_data", {})
    pictures = {name: _alone(of["rgb"]).astype(np.uint8) for name, of in sensors.items() if "rgb" in of}
    numbers = _numbers({name: value for name, value in observation.items() if not name.startswith("sensor_")})
    return {**pictures, "state": np.concatenate(numbers).astype(np.float32)} if numbers else pictures


def _numbers(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [item for part in value.values() for item in _numbers(part)]
    return [np.asarray(_alone(value)).reshape(-1)]


def _alone(value: Any) -> Any:
    """A tensor or array [1, …] as an array without that axis."""
    array = np.asarray(value.cpu() if hasattr(value, "cpu") else value)
    return array[0] if array.ndim else array
