"""Stand-ins for packages that cannot run here, with the part of their API that adapters use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

LIBERO_INIT = """
import os, yaml
path = os.path.join(os.environ.get("LIBERO_CONFIG_PATH", os.path.expanduser("~/.libero")), "config.yaml")
if not os.path.exists(path):
    answer = input("Do you want to specify a custom path for the dataset folder? (Y/N): ")
with open(path) as file:
    CONFIG = yaml.safe_load(file)
def get_libero_path(name):
    return CONFIG[name]
"""
LIBERO_BENCHMARK = """
from types import SimpleNamespace
import numpy as np
class Suite:
    n_tasks = 2
    def get_task(self, number):
        name = ("lift", "stack")[number]
        return SimpleNamespace(name=name, language=name + " the bowl", problem_folder="bowls", bddl_file=name + ".bddl")
    def get_task_init_states(self, number):
        return [np.full(3, place) for place in range(5)]
def get_benchmark_dict():
    return {"libero_bowls": Suite}
"""
LIBERO_ENVS = """
import numpy as np
MADE = []
class OffScreenRenderEnv:
    def __init__(self, bddl_file_name, camera_heights, camera_widths):
        self.file, self.size, self.is_closed = bddl_file_name, camera_heights, False
        self.place = np.zeros(3)
        MADE.append(self)
    def seed(self, seed):
        self.seeded = seed
    def reset(self):
        self.place = np.zeros(3)
        return self.seen()
    def set_init_state(self, state):
        self.place = np.asarray(state, float)
        return self.seen()
    def step(self, action):
        assert isinstance(action, list) and len(action) == 7 and action[-1] in (-1.0, 1.0)
        self.grips = [*getattr(self, "grips", []), action[-1]]
        self.place = self.place + np.array(action[:3])
        done = bool(self.place[0] >= 4)
        return self.seen(), float(done), done, {}
    def seen(self):
        picture = np.zeros((self.size, self.size, 3), np.uint8)
        picture[0, 1] = 255
        return {
            "agentview_image": picture,
            "robot0_eye_in_hand_image": picture,
            "robot0_eef_pos": self.place,
            "robot0_eef_quat": np.array([0.0, 0.0, np.sin(0.25), np.cos(0.25)]),
            "robot0_gripper_qpos": np.array([0.04, -0.04]),
        }
    def close(self):
        self.is_closed = True
"""


def with_libero(folder: Path, monkeypatch: pytest.MonkeyPatch, *, has_scenes: bool = True) -> None:
    """A package `libero` on the path, whose import asks on standard input where it has no configuration."""
    root = folder / "libero" / "libero"
    for place in (root, root / "benchmark", root / "envs"):
        place.mkdir(parents=True)
    if has_scenes:
        (root / "assets").mkdir()
    (root.parent / "__init__.py").write_text("")
    (root / "__init__.py").write_text(LIBERO_INIT)
    (root / "benchmark" / "__init__.py").write_text(LIBERO_BENCHMARK)
    (root / "envs" / "__init__.py").write_text(LIBERO_ENVS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(folder / "configuration"))


class Batched:
    """A tensor of ManiSkill, as far as it is read."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def cpu(self) -> np.ndarray:
        return self.values


class PickCube:
    """A task of ManiSkill with one environment."""

    def __init__(self, id: str, num_envs: int, **options: Any) -> None:
        assert num_envs == 1
        self.options, self.place, self.is_closed = options, 0.0, False
        space = SimpleNamespace(low=-np.ones(2, np.float32), high=np.ones(2, np.float32))
        self.unwrapped = SimpleNamespace(single_action_space=space)

    def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        self.place = float(seed)
        return self.seen(), {}

    def step(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert action.shape == (1, 2)
        self.place += float(action[0, 0])
        is_done = Batched([self.place >= 2])
        return self.seen(), Batched([0.5]), is_done, Batched([False]), {"success": is_done, "fail": Batched([False])}

    def seen(self) -> dict[str, Any]:
        return {
            "agent": {"qpos": Batched([[self.place, 1.0]]), "qvel": Batched([[0.0]])},
            "extra": {"goal": Batched([[2.0]])},
            "sensor_param": {"front": {"cam": Batched([[9.0]])}},
            "sensor_data": {"front": {"rgb": Batched(np.full((1, 4, 4, 3), 7, np.uint8))}},
        }

    def close(self) -> None:
        self.is_closed = True


def with_modules(monkeypatch: pytest.MonkeyPatch, make: Callable[..., Any]) -> None:
    """Modules `mani_skill.envs` and `gymnasium`."""
    module = ModuleType("gymnasium")
    module.make = make  # type: ignore[attr-defined]
    for name, value in (("gymnasium", module), ("mani_skill", ModuleType("m")), ("mani_skill.envs", ModuleType("e"))):
        monkeypatch.setitem(sys.modules, name, value)
