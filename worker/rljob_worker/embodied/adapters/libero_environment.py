"""Task suites of LIBERO. Not run here: its package holds no scenes; what is known is its public API.

A picture of a camera is turned by half a turn, as the published policies see it. The state is what OpenVLA-OFT reads:
place of the gripper, its turn as axis and angle, and its two fingers.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rljob_worker.embodied.adapters.packages import imported
from rljob_worker.embodied.simulators.settings import FIELD
from rljob_worker.errors import InvalidJob, NotHere

INSTALL = "git+https://github.com/Lifelong-Robot-Learning/LIBERO 'robosuite==1.4.0' 'mujoco==3.3.7'"
CAMERAS = {"agentview": "agentview_image", "wrist": "robot0_eye_in_hand_image"}
DIMENSIONS = 7

GripperSign = Literal["OpenVLA", "LIBERO"]


class LiberoEnvironment:
    """Tasks of one suite; the scene of the last one stays."""

    def __init__(self, suite: str, size: int, gripper: GripperSign) -> None:
        """size: pixels of a picture's sides. Raises InvalidJob."""
        prepare_configuration()
        benchmark = imported("libero.libero.benchmark", INSTALL)
        suites = benchmark.get_benchmark_dict()
        if suite not in suites:
            raise InvalidJob(
                f"{FIELD}.options.suite: LIBERO has no suite {suite!r}; it has {', '.join(sorted(suites))}"
            )
        self._suite, self._size, self._gripper = suites[suite](), size, gripper
        self._names = [self._suite.get_task(i).name for i in range(self._suite.n_tasks)]
        self._environment: Any = None
        self._task: str | None = None
        self.action_space = SimpleNamespace(low=-np.ones(DIMENSIONS, np.float32), high=np.ones(DIMENSIONS, np.float32))
        self.still_action = np.array([0.0] * 6 + [1.0 if gripper == "OpenVLA" else -1.0])

    def reset(self, seed: int, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Begin. options: `task`, a name or its number in the suite; `initial_state`, which of the suite's initial
        states, by default one that follows from the seed."""
        number = self._number(str(options.get("task", "0")))
        environment = self._made(number)
        states = self._suite.get_task_init_states(number)
        environment.seed(seed)
        environment.reset()
        return self._seen(environment.set_init_state(states[int(options.get("initial_state", seed)) % len(states)])), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step; LIBERO says that it is done where it has succeeded."""
        values = np.array(action, np.float64)
        if self._gripper == "OpenVLA":
            values = signed_gripper(values)
        observation, reward, done, info = self._environment.step(values.tolist())
        return self._seen(observation), float(reward), bool(done), False, {**info, "success": bool(done)}

    def tasks(self) -> list[dict[str, str]]:
        """Those of the suite."""
        instructions = [self._suite.get_task(i).language for i in range(self._suite.n_tasks)]
        return [{"task": name, "instruction": text} for name, text in zip(self._names, instructions, strict=True)]

    def close(self) -> None:
        """End the scene."""
        if self._environment is not None:
            self._environment.close()

    def _number(self, task: str) -> int:
        if task in self._names:
            return self._names.index(task)
        if task.isdigit() and int(task) < len(self._names):
            return int(task)
        raise InvalidJob(f"{FIELD}: the suite has no task {task!r}; it has {', '.join(self._names)}")

    def _made(self, number: int) -> Any:
        name = self._names[number]
        if self._task != name:
            self.close()
            task, libero = self._suite.get_task(number), imported("libero.libero", INSTALL)
            scene = os.path.join(libero.get_libero_path("bddl_files"), task.problem_folder, task.bddl_file)
            make = imported("libero.libero.envs", INSTALL).OffScreenRenderEnv
            self._environment = make(bddl_file_name=scene, camera_heights=self._size, camera_widths=self._size)
            self._task = name
        return self._environment

    def _seen(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        pictures = {
            name: np.ascontiguousarray(np.asarray(observation[key])[::-1, ::-1]) for name, key in CAMERAS.items()
        }
        parts = (
            observation["robot0_eef_pos"],
            axis_angle(np.asarray(observation["robot0_eef_quat"], np.float64)),
            observation["robot0_gripper_qpos"],
        )
        return {**pictures, "state": np.concatenate([np.asarray(part, np.float32) for part in parts])}


def libero(suite: str, *, size: int = 256, gripper: GripperSign = "OpenVLA") -> LiberoEnvironment:
    """Tasks of a suite such as libero_spatial. size: pixels of a picture's sides. Cameras are agentview and wrist.
    gripper: what the last number of the policy's actions says, `OpenVLA`: 0 close, 1 open; `LIBERO`: 1 close, -1 open.
    Raises InvalidJob."""
    return LiberoEnvironment(suite, size, gripper)


def axis_angle(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """A turn (x, y, z, w) as its axis times its angle, [3]."""
    w = float(np.clip(quaternion[3], -1.0, 1.0))
    length = math.sqrt(1.0 - w * w)
    return np.zeros(3) if math.isclose(length, 0.0) else quaternion[:3] * (2.0 * math.acos(w) / length)


def prepare_configuration() -> None:
    """Say where LIBERO's files are before it is imported: without that it asks on standard input. Raises InvalidJob
    where it is not installed, or has no scenes."""
    spec = importlib.util.find_spec("libero")
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    root = next((place / "libero" for place in places if (place / "libero").is_dir()), None)
    if root is None:
        raise NotHere(f"{FIELD}.run needs the package libero, which is not installed; run pip install {INSTALL}")
    if not (root / "assets").is_dir():
        raise NotHere(
            f"{FIELD}.run: the package libero has no scenes, {root / 'assets'} does not exist; they are in its "
            "repository: git clone https://github.com/Lifelong-Robot-Learning/LIBERO && pip install -e LIBERO"
        )
    folder = Path(os.environ.get("LIBERO_CONFIG_PATH") or Path.home() / ".libero")
    if not (folder / "config.yaml").exists():
        folder.mkdir(parents=True, exist_ok=True)
        files = {"benchmark_root": ".", "bddl_files": "bddl_files", "init_states": "init_files", "assets": "assets"}
        lines = [f"{name}: {root / place}\n" for name, place in {**files, "datasets": "../datasets"}.items()]
        (folder / "config.yaml").write_text("".join(lines))


def signed_gripper(actions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Actions [..., dimensions] whose last number, from 0 (closed) to 1 (open) as data sets of OpenVLA have it, becomes
    1 (close) or -1 (open), as LIBERO wants it."""
    result = actions.copy()
    result[..., -1] = np.where(actions[..., -1] > 0.5, -1.0, 1.0)
    return result
