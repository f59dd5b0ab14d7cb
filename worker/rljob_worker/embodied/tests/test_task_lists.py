"""Data that a simulator lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_api.v1alpha1 import EvaluationSpec
from rljob_worker.embodied.simulators.job_pool import simulator_environment, simulator_settings
from rljob_worker.embodied.simulators.settings import PoolLimits, SimulatorSettings
from rljob_worker.embodied.simulators.tests.pools import WORLDS, settings
from rljob_worker.embodied.task_lists import TaskLists, evaluation_rows
from rljob_worker.embodied.tests.plane_policy import simulator
from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.guardian.environment import child_environment

ROWS = [
    {"task": "lift", "instruction": "lift it", "initial_state": "0"},
    {"task": "drop", "instruction": "drop it", "initial_state": "0"},
    {"task": "lift", "instruction": "lift it", "initial_state": "1"},
]


def lists(folder: Path, how: SimulatorSettings | None = None, **fields: Any) -> TaskLists:
    return TaskLists(simulator(**fields), "prompt", folder, how or settings())


def lines_of(path: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_tasks_that_a_simulator_lists_are_rows_of_data_and_listed_once(tmp_path: Path) -> None:
    limits, environment = PoolLimits(processes=1), child_environment([])
    data = lists(tmp_path).train(limits, environment)
    rows = [{"prompt": "go left", "task": "left"}, {"prompt": "go right", "task": "right"}]
    assert data.name == "tasks" and lines_of(data.path) == rows
    again = lists(tmp_path).validation(EvaluationSpec(trials=2), limits, {"PATH": "nothing that starts"})
    assert again.name == "evaluation" and lines_of(again.path) == [rows[0], rows[0], rows[1], rows[1]]


def test_a_simulator_without_a_list_is_refused_in_a_job_without_data(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="has no method `tasks` that lists its tasks; give data"):
        lists(tmp_path, settings("listless")).train(PoolLimits(processes=1), child_environment([]))


def test_a_column_that_is_not_listed_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="columns: the simulator lists a task without 'initial_state'; it has instruc"):
        lists(tmp_path, columns=["task", "initial_state"]).train(PoolLimits(processes=1), child_environment([]))


def test_every_task_is_tried_as_often_with_its_initial_states_in_turn() -> None:
    rows = evaluation_rows(ROWS, EvaluationSpec(trials=3))
    assert [(row["task"], row["initial_state"]) for row in rows] == [
        ("lift", "0"), ("lift", "1"), ("lift", "0"), ("drop", "0"), ("drop", "0"), ("drop", "0"),
    ]  # fmt: skip
    assert [row["task"] for row in evaluation_rows(ROWS, EvaluationSpec(tasks=("drop",), trials=1))] == ["drop"]


def test_a_task_that_is_not_listed_cannot_be_evaluated() -> None:
    with pytest.raises(InvalidJob, match="evaluation.tasks: no task 'push' is listed; there are lift, drop"):
        evaluation_rows(ROWS, EvaluationSpec(tasks=("push",)))


def test_a_job_sees_no_state_where_it_names_cameras_alone() -> None:
    def seen(**fields: Any) -> tuple[Any, Any]:
        result = simulator_settings(simulator(run=f"{WORLDS}:plane", **fields))
        return result.cameras, result.state

    assert seen() == ((), ()) and seen(cameras=["front"]) == (("front",), None)
    assert seen(cameras=["front"], state=["joints"]) == (("front",), ("joints",))


def test_a_device_of_egl_is_that_of_the_rank() -> None:
    def device(rank: int, **base: str) -> str:
        egl = simulator(rendering="EGL")
        return simulator_environment(egl, [], rank, base, lambda name: "libEGL.so")["MUJOCO_EGL_DEVICE_ID"]

    assert [device(3), device(3, CUDA_VISIBLE_DEVICES="5"), device(1, CUDA_VISIBLE_DEVICES="4,5")] == ["3", "5", "1"]
    assert "MUJOCO_GL" not in simulator_environment(simulator(), [], 0, {}, lambda name: None)
    with pytest.raises(InvalidJob, match="EGL is not on this machine; install libegl1"):
        simulator_environment(simulator(rendering="EGL"), [], 0, {}, lambda name: None)
