"""Episodes as columns of rows and as figures."""

from __future__ import annotations

import numpy as np
import pytest

from rljob_api.v1alpha1 import SimulatorSpec
from rljob_worker.conversations.playing.tests.playing import tasks_of
from rljob_worker.conversations.trajectory import Sampled, TokenRow, Trajectory
from rljob_worker.metrics.scalars import merge_all
from rljob_worker.runtime.lead.recorder import standard_errors
from rljob_worker.stages.played.episode_rows import episode_columns, episode_metrics, number_of_task, success_figures

FILMED = SimulatorSpec.model_validate({"run": "my:arm", "video": {"run": "my:encoder"}})


def episode(task: str, success: bool, at_end: bool, finish: int, decisions: int = 1) -> Trajectory:
    (one,) = tasks_of("go", columns={"task": task})
    trajectory = Trajectory(one)
    for turn in range(decisions):
        row = TokenRow(np.array([1]))
        row.state = np.array([turn, 0.5], np.float32)
        row.add_sampled(Sampled(np.arange(4), np.zeros(4, np.float32), np.zeros(4, np.int64), 0), turn)
        trajectory.rows.append(row)
    trajectory.columns |= {"success": success, "success_at_end": at_end, "finish_step": finish}
    return trajectory


def test_every_row_of_an_episode_says_what_it_came_to() -> None:
    episodes = [episode("a", True, False, 3, decisions=2), episode("b", False, False, 8)]
    failed = Trajectory(episodes[0].task)
    rows = [row for item in episodes for row in item.rows] + [TokenRow(np.array([7]))]
    columns = episode_columns([*episodes, failed], np.array([0, 0, 1, 2]), rows, SimulatorSpec(run="my:arm"))
    assert columns["success"].values.tolist() == [1, 1, 0, 0] and columns["success"].values.dtype == np.uint8
    assert columns["success_at_end"].values.tolist() == [0, 0, 0, 0]
    assert columns["finish_step"].values.tolist() == [3, 3, 8, 0]
    states = [state.tolist() for state in columns["state"].to_list()]
    assert states == [[0, 0.5], [1, 0.5], [0, 0.5], [0, 0]], "as many numbers in every row"
    assert "state" not in episode_columns(
        episodes, np.array([0, 0, 1]), rows[:3], SimulatorSpec(run="my:arm", cameras=("front",))
    )


def test_the_last_row_of_an_episode_has_what_became_of_its_video() -> None:
    episodes = [episode("a", True, True, 3, decisions=2), episode("b", False, False, 8), episode("a", True, True, 1)]
    episodes[0].embedding, episodes[1].embedding = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    rows = [row for item in episodes for row in item.rows]
    columns = episode_columns(episodes, np.array([0, 0, 1, 2]), rows, FILMED)
    assert [item.tolist() for item in columns["video_embedding"].to_list()] == [[], [1, 2], [3, 4], []]
    assert columns["task_id"].values.tolist() == [number_of_task(name) for name in "aaba"]
    assert number_of_task("a") != number_of_task("b")


def test_success_is_counted_over_episodes_and_for_each_task() -> None:
    failed = episode("b", True, True, 1)
    failed.fail("error", "")
    episodes = [episode("a", True, True, 4), episode("a", True, False, 2), episode("b", False, False, 8), failed]
    values = {name: scalar.value for name, scalar in episode_metrics(episodes).items()}
    assert values == {
        "simulator/success": pytest.approx(2 / 3),
        "simulator/success_at_end": pytest.approx(1 / 3),
        "simulator/finish_step": 3.0,  # of 4 and 2, that succeeded
        "simulator/success/a": 1.0,
        "simulator/success/b": 0.0,
        "simulator/success_at_end/a": 0.5,
        "simulator/success_at_end/b": 0.0,
    }


def test_validation_says_how_sure_its_success_is() -> None:
    ranks = [
        success_figures(np.array([1, 0]), np.array([1, 0]), ["a", "b"]),
        success_figures(np.array([1, 1]), np.array([0, 1]), ["b", "b"]),
    ]
    errors = standard_errors(merge_all(ranks))
    assert errors == {
        "validation/success_standard_error": pytest.approx((0.75 * 0.25 / 4) ** 0.5),
        "validation/success_standard_error/a": 0.0,
        "validation/success_standard_error/b": pytest.approx((2 / 9 / 3) ** 0.5),  # 2 of 3
    }
