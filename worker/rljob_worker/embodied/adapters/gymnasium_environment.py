"""Environments that are registered with gymnasium, and those of gymnasium-robotics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_worker.embodied.adapters.packages import imported
from rljob_worker.errors import InvalidJob, NotHere

TERMINATED = "terminated"
MUJOCO = "'mujoco==3.3.7'"
"""The version that these packages work with; newer ones fail in them."""


class GymnasiumEnvironment:
    """One environment, with what its steps say of success under one name."""

    def __init__(self, environment: Any, success: str, task: str, instruction: str) -> None:
        self._environment, self._success = environment, success
        self._task, self._instruction = task, instruction
        self.action_space = environment.action_space

    def reset(self, seed: int, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of this seed. options: of the job's data; these environments have none of their own."""
        observation, info = self._environment.reset(seed=seed)
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As gymnasium has it, with `success` in what is said of the step."""
        observation, reward, terminated, truncated, info = self._environment.step(action)
        success = terminated if self._success == TERMINATED else info.get(self._success)
        return observation, reward, terminated, truncated, info if success is None else {**info, "success": success}

    def tasks(self) -> list[dict[str, str]]:
        """The one that there is."""
        return [{"task": self._task, "instruction": self._instruction}]

    def close(self) -> None:
        """End what it holds."""
        self._environment.close()


def gymnasium(
    id: str, *, success: str = "success", instruction: str | None = None, **options: Any
) -> GymnasiumEnvironment:
    """An environment that gymnasium makes. Needs `pip install gymnasium`.

    id: as it is registered, `package:Name-v1` where importing a package registers it. success: what of the `info` of a
    step says whether it succeeded, or `terminated`, where only success ends an episode. instruction: its task in words;
    unset: its id. options: of the environment. Raises InvalidJob.
    """
    module = imported("gymnasium", "gymnasium")
    try:
        environment = module.make(id, **options)
    except module.error.DependencyNotInstalled as error:
        raise NotHere(f"rollout.simulator.options: {id} needs more than gymnasium: {error}") from error
    except (module.error.UnregisteredEnv, module.error.NamespaceNotFound, module.error.NameNotFound) as error:
        raise InvalidJob(f"rollout.simulator.options.id: {error}") from error
    return GymnasiumEnvironment(environment, success, id, instruction or id)


def gymnasium_robotics(id: str, *, instruction: str | None = None, **options: Any) -> GymnasiumEnvironment:
    """An environment of gymnasium-robotics 1.4.2, such as FetchReach-v4, with which `is_success` is success. Its
    observations are dictionaries; without `state` all their numbers are the state. Raises InvalidJob."""
    robotics = imported("gymnasium_robotics", f"'gymnasium-robotics==1.4.2' {MUJOCO}")
    imported("gymnasium", "gymnasium").register_envs(robotics)
    return gymnasium(id, success="is_success", instruction=instruction, **options)
