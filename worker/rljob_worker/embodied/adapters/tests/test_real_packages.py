"""Adapters with the packages that they adapt, in an environment of their own: their pins do not go with ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rljob_worker.built_once import cache_root

pytestmark = pytest.mark.slow

PACKAGES = ("mujoco==3.3.7", "metaworld==3.0.0", "gymnasium-robotics==1.4.2", "pillow", "pydantic", "pyyaml")
ROOT = Path(__file__).parents[5]


def python_with_simulators() -> Path:
    """The interpreter of an environment with the packages, made once for all checkouts of a user."""
    environment = cache_root() / "simulators-mujoco-3.3.7"
    uv = [sys.executable, "-m", "uv"]
    if not (environment / "installed").exists():
        subprocess.run(
            [*uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, environment], check=True
        )
        subprocess.run([*uv, "pip", "install", "--quiet", "--python", environment, *PACKAGES], check=True)
        (environment / "installed").touch()
    return environment / "bin" / "python"


def simulated(name: str, arguments: list[Any], steps: int = 5, rendering: str = "disable") -> dict[str, Any]:
    """What `simulate.py` says of an adapter."""
    program = [str(python_with_simulators()), str(Path(__file__).parent / "simulate.py"), name, json.dumps(arguments)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'worker'}:{ROOT / 'crds'}", "MUJOCO_GL": rendering}
    ended = subprocess.run([*program, str(steps)], env=environment, capture_output=True, text=True, stdin=-3)
    assert ended.returncode == 0, ended.stderr[-2000:]
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


def require_repeatable(report: dict[str, Any]) -> None:
    """Equal seeds give equal episodes, others give others."""
    one, again, other = zip(report["firsts"], report["digests"], strict=True)
    assert one == again and one[0] != other[0] and one[1] != other[1]


def test_a_task_of_metaworld_repeats_itself_and_says_of_every_step_whether_it_succeeded() -> None:
    report = simulated("metaworld", [[["reach-v3"]], {}])
    require_repeatable(report)
    assert (report["state"], report["dimensions"]) == ([39], 4)
    assert report["successes"] == [False] * 5
    assert report["tasks"] == [{"task": "reach-v3", "instruction": "reach"}]


def test_an_environment_of_gymnasium_robotics_repeats_itself() -> None:
    report = simulated("gymnasium_robotics", [["FetchReach-v4"], {"instruction": "move the gripper"}])
    require_repeatable(report)
    assert (report["state"], report["dimensions"]) == ([16], 4)  # 10 of the arm, 3 of both goals
    assert report["successes"] == [False] * 5


def test_an_environment_of_gymnasium_repeats_itself() -> None:
    report = simulated("gymnasium", [["HalfCheetah-v5"], {"success": "terminated"}])
    require_repeatable(report)
    assert (report["state"], report["dimensions"], report["successes"]) == ([17], 6, [False] * 5)


def test_pictures_of_metaworld_are_drawn_without_a_display() -> None:
    report = simulated("metaworld", [[["reach-v3"]], {"cameras": ["corner2"]}], steps=1, rendering="egl")
    assert len(report["pictures"]) == 1 and report["pictures"][0] > 1000
