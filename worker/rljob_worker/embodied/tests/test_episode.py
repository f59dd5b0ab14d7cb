"""Episodes of a point on a plane, played by the loop of conversations with real processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rljob_worker.conversations.journal.records import records_of
from rljob_worker.embodied.simulators.tests.pools import settings
from rljob_worker.embodied.tests.plane_policy import PlanePolicy, engine_of, played, simulator, still, towards_goal
from rljob_worker.errors import InvalidJob
from rljob_worker.vision.tests.test_animations import frames_of

GOAL = np.random.default_rng(np.random.SeedSequence([7, 0]).generate_state(1)[0] % (1 << 31)).uniform(-1, 1, 2)
"""Of group 0 of a job with seed 7."""


def test_each_decision_is_a_row_and_actions_after_success_are_masked() -> None:
    policy = PlanePolicy()
    (episode,) = played(towards_goal, policy=policy)
    steps = int(np.ceil(np.abs(GOAL).max() / 0.5))  # an action goes 0.5 at most
    assert steps == 2, "both actions of the one decision"
    (row,) = episode.rows
    assert row.state is not None and row.state[2:] == pytest.approx(GOAL, abs=1e-6)
    assert row.mask.tolist() == [1, 1, 1, 1] and row.num_response_tokens == 4
    assert episode.columns == {"success": 1, "success_at_end": 1, "finish_step": 2}
    assert (episode.environment_reward, episode.truncated, episode.failed) == (1.0, False, None)
    assert [item.instruction for item in policy.seen] == ["go"]
    assert ("steps", 2.0) in episode.metrics


def test_what_is_done_after_success_is_no_action_where_an_episode_goes_on() -> None:
    (episode,) = played(towards_goal, simulator(afterSuccess="Continue"))
    assert [row.mask.tolist() for row in episode.rows] == [[1] * 4, [0] * 4, [0] * 4]
    assert episode.columns == {"success": 1, "success_at_end": 1, "finish_step": 2}
    assert [turn for turn, _ in episode.rewards] == [0] and not episode.truncated


def test_success_at_any_time_is_not_success_at_the_end() -> None:
    def away_again(state: np.ndarray) -> np.ndarray:
        is_there = np.abs(state[2:] - state[:2]).max() < 0.1
        return np.ones((2, 2)) if is_there else towards_goal(state)

    (episode,) = played(away_again, simulator(afterSuccess="Continue", maxSteps=4))
    assert episode.columns == {"success": 1, "success_at_end": 0, "finish_step": 2} and episode.truncated


def test_an_episode_without_success_is_cut_off_at_its_last_step_and_marked() -> None:
    (episode,) = played(still, simulator(maxSteps=3))
    assert [row.mask.tolist() for row in episode.rows] == [[1] * 4, [1, 1, 0, 0]]  # 2 + 1 actions
    assert episode.columns == {"success": 0, "success_at_end": 0, "finish_step": 3}
    assert (episode.environment_reward, episode.truncated) == (0.0, True)


def test_rewards_of_the_simulator_are_at_the_decisions_that_earned_them() -> None:
    (episode,) = played(still, simulator(maxSteps=3, reward="Environment"))
    distance = float(np.abs(GOAL).max())
    rewards = dict(episode.rewards)
    assert rewards == {0: pytest.approx(-2 * distance), 1: pytest.approx(-distance)}


@pytest.mark.parametrize(
    ("task", "spec", "cause"),
    [
        ("bad", {}, "simulator_raised"),
        ("nan", {}, "simulator_bad_observation"),
        ("", {"outOfRange": "Fail"}, "action_out_of_range"),
    ],
)
def test_what_goes_wrong_costs_its_episode_alone(task: str, spec: dict[str, Any], cause: str) -> None:
    def too_far(state: np.ndarray) -> np.ndarray:
        return np.full((2, 2), 1.5)

    how = settings(options={"faults": {"bad": "raise"}})
    failed, other = played(too_far, simulator(**spec), tasks=(task, "" if not spec else task), how=how)
    assert failed.failed == cause
    assert other.failed == (cause if spec else None)


def test_actions_out_of_range_are_moved_to_the_bound_and_counted() -> None:
    (episode,) = played(lambda state: np.array([[1.5, 0.0], [0.5, -0.5]]), simulator(maxSteps=2))
    assert ("actions_clipped_fraction", 0.25) in episode.metrics


def test_a_simulator_that_never_says_success_cannot_be_played() -> None:
    with pytest.raises(InvalidJob, match='no step of an episode said whether it succeeded; return "success"'):
        played(still, tasks=("mute",))


def test_a_policy_whose_actions_are_not_those_of_the_simulator_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidJob, match="has 4 action tokens, and 3 actions .* of 2 dimensions .* have 6; take a pol"):
        played(still, simulator(actionChunk=3))


def test_an_episode_that_a_person_is_shown_has_a_video_of_every_step_and_says_where_its_time_went() -> None:
    spec, how = (
        simulator(maxSteps=3, cameras=["front"], state=["state"]),
        settings(options={"pictures": True}, cameras=("front",), state=("state",)),
    )

    def move(state: np.ndarray) -> np.ndarray:
        return np.full((2, 2), 0.5)

    shown, other = played(move, spec, how=how, group_size=2, shown=frozenset([0]))
    assert other.shown == {} and sorted(shown.shown) == [
        "instruction", "steps", "success", "task", "timeline", "video",
    ]  # fmt: skip
    assert (shown.shown["instruction"], shown.shown["success"], shown.shown["steps"]) == ("go", False, 3)
    # reset, decision of 2 actions, decision of 1; the engine decides twice
    assert len(shown.shown["timeline"]) == 5 and min(shown.shown["timeline"]) >= 0
    assert len(frames_of(shown.shown["video"])) == 4, "after the reset and after each of 3 steps"
    assert {name for name, _ in other.metrics} >= {"seconds", "engine_seconds"}


class Lines:
    """A journal in memory, as lines of a file."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def append(self, entry: Any) -> None:
        self.entries.append(entry)


def test_a_step_that_is_repeated_replays_decisions_in_a_simulator_that_has_to_show_the_same() -> None:
    lines = Lines()
    (first,) = played(still, entries=lines)
    records = {(0, 0): record_of(lines.entries[:-3])}  # the process ended before the last decision's call
    engine = engine_of(still)
    (again,) = played(still, engine=engine, records=records)
    assert len(engine.submitted) == 1, "only the last decision is sampled again"
    assert again.is_replayed and again.failed is None
    assert [row.response_ids.tolist() for row in again.rows] == [row.response_ids.tolist() for row in first.rows]
    pictures = settings(options={"pictures": True}, cameras=("front",))
    (other,) = played(still, records={(0, 0): record_of(lines.entries[:-3])}, how=pictures)
    assert other.failed == "replay" and "something else came of reset" in other.message


def record_of(entries: list[Any]) -> Any:
    import json

    return records_of(json.dumps(entry).encode() for entry in entries)[0, 0]
