"""Adapters with stand-ins for packages that cannot run here; those that can are in `test_real_packages`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_worker.embodied import adapters
from rljob_worker.embodied.adapters.libero_environment import axis_angle
from rljob_worker.embodied.adapters.tests.stand_ins import PickCube, with_libero, with_modules
from rljob_worker.embodied.simulators.environment import SimulatedEnvironment
from rljob_worker.embodied.simulators.settings import SimulatorSettings
from rljob_worker.errors import InvalidJob


@pytest.fixture(autouse=True)
def forgets_stand_ins() -> Iterator[None]:
    """What a test imports of stand-ins is of that test."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("libero", "metaworld"):
            del sys.modules[name]


def simulated(environment: Any, **changes: Any) -> SimulatedEnvironment:
    return SimulatedEnvironment(environment, SimulatorSettings("adapters:x", {}, **changes))


def test_a_suite_of_libero_is_played_without_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_libero(tmp_path, monkeypatch)
    environment = adapters.libero("libero_bowls", size=4)
    simulator = simulated(environment, cameras=("agentview", "wrist"), state=("state",), settle_steps=1)
    assert environment.tasks()[1] == {"task": "stack", "instruction": "stack the bowl"}
    first = simulator.reset(7, {"task": "stack", "initial_state": "3"})
    assert first.state is not None and len(first.pictures) == 2
    # place 3, which settling leaves; a turn of 0.5 about z; two fingers
    assert first.state == pytest.approx([3, 3, 3, 0, 0, 0.5, 0.04, -0.04])
    last = simulator.step(np.array([[0.5, 0, 0, 0, 0, 0, 1], [0.5, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]]))
    assert (last.successes, last.rewards, last.is_over) == ((False, True), (0.0, 1.0), True)
    seen, _ = environment.reset(7, {"task": "0"})
    assert np.argwhere(seen["agentview"][..., 0]).tolist() == [[3, 2]]  # (0, 1) of 4 x 4 after half a turn
    made = sys.modules["libero.libero.envs"].MADE
    assert [item.file.rpartition("/")[2] for item in made] == ["stack.bddl", "lift.bddl"]
    assert [item.is_closed for item in made] == [True, False]
    assert made[0].grips == [-1.0, -1.0, 1.0]  # open while it settles, open, closed


def test_libero_without_its_scenes_is_refused_with_the_command_that_fetches_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_libero(tmp_path, monkeypatch, has_scenes=False)
    with pytest.raises(InvalidJob, match="libero has no scenes, .*assets does not exist.*git clone https://.*LIBERO"):
        adapters.libero("libero_bowls")


def test_a_suite_or_task_that_there_is_not_is_refused_with_those_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_libero(tmp_path, monkeypatch)
    with pytest.raises(InvalidJob, match="no suite 'libero_bowl'; it has libero_bowls"):
        adapters.libero("libero_bowl")
    with pytest.raises(InvalidJob, match="no task 'drop'; it has lift, stack"):
        adapters.libero("libero_bowls").reset(1, {"task": "drop"})


def test_no_turn_has_no_axis() -> None:
    assert axis_angle(np.array([0.0, 0.0, 0.0, 1.0])).tolist() == [0.0, 0.0, 0.0]


def test_a_task_of_maniskill_is_played_without_its_axis_of_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    with_modules(monkeypatch, PickCube)
    environment = adapters.maniskill("PickCube-v1", instruction="pick the cube", obs_mode="rgb")
    simulator = simulated(environment, cameras=("front",), state=("state",))
    first = simulator.reset(1, {"task": "PickCube-v1"})
    assert first.state is not None and first.state.tolist() == [1.0, 1.0, 0.0, 2.0] and len(first.pictures) == 1
    last = simulator.step(np.array([[0.5, 0.0], [0.5, 0.0]]))
    assert (last.successes, last.rewards, last.is_over) == ((False, True), (0.5, 0.5), True)


def test_maniskill_without_vulkan_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(id: str, **options: Any) -> None:
        raise RuntimeError("failed to find a rendering device: vk::createInstance, no Vulkan device")

    with_modules(monkeypatch, make)
    with pytest.raises(InvalidJob, match="ManiSkill needs a Vulkan device"):
        adapters.maniskill("PickCube-v1")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: adapters.metaworld(["reach-v3"]),
            "package metaworld, .*; run pip install 'metaworld==3.0.0' 'mujoco==3.3.7'",
        ),
        (lambda: adapters.gymnasium("A-v1"), "package gymnasium, .*; run pip install gymnasium"),
        (lambda: adapters.gymnasium_robotics("A-v1"), "pip install 'gymnasium-robotics==1.4.2' 'mujoco==3.3.7'"),
        (lambda: adapters.maniskill("A-v1"), "pip install 'mani-skill==3.0.1'"),
        (lambda: adapters.libero("libero_spatial"), "package libero, .*; run pip install git"),
    ],
)
def test_a_package_that_is_absent_is_named_with_the_command_that_installs_it(make: Any, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        make()


def test_an_import_that_ends_the_process_is_a_reason_and_not_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metaworld.py").write_text("exit()")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidJob, match="importing metaworld failed: SystemExit"):
        adapters.metaworld(["reach-v3"])
