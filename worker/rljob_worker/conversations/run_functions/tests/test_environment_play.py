"""Conversations with an environment: who speaks, what is rewarded, when it ends."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_worker import conversations
from rljob_worker.conversations.policy import Bounds
from rljob_worker.conversations.rendering.tests import chat_models
from rljob_worker.conversations.run_functions.tests.scripted import PROMPT, a_task, played, shown
from rljob_worker.conversations.world import SharedWorld
from rljob_worker.sandbox.targets import CallError

SHARED = SharedWorld(environments=("game",))


def game(method: str | None, arguments: dict[str, Any]) -> Any:
    """Asks for a number below ten; the seed is the secret."""
    if method == "reset":
        secret.append(arguments["seed"])
        return result(f"guess, {arguments['columns'].get('name', 'you')}")
    guess = int(arguments["text"])
    if guess == secret[-1]:
        return result("right", 1.0, True)
    return result("higher" if guess < secret[-1] else "lower", -0.25, metrics={"wrong": 1.0})


secret: list[int] = []


def result(observation: Any, reward: float = 0.0, done: bool = False, metrics: Any = None) -> dict[str, Any]:
    return {"observation": observation, "reward": reward, "done": done, "metrics": metrics or {}}


def test_an_environment_is_played_until_it_is_done() -> None:
    trajectory = played(conversations.environment, ["5", "7", "9"], shared=SHARED, functions={"game episode": game})
    said = [(message["role"][0], message["content"]) for message in trajectory.messages]
    assert said == [("u", "go\n\nguess, you"), ("a", "5"), ("u", "higher"), ("a", "7")]
    # each reward belongs to the turn before it
    assert trajectory.rewards == [(0, -0.25), (1, 1.0)]
    assert trajectory.environment_reward == 0.75
    assert dict(trajectory.metrics) == {"wrong": 1.0, "environment_done": True}


def test_columns_reach_the_environment() -> None:
    task = a_task(PROMPT, name="Ada")
    trajectory = played(conversations.environment, ["7"], shared=SHARED, functions={"game episode": game}, task=task)
    assert "guess, Ada" in shown(trajectory)


@pytest.mark.parametrize(
    ("messages", "observation", "expected"),
    [
        ([], "look", [("user", "look")]),
        ([{"role": "system", "content": "s"}], "look", [("system", "s"), ("user", "look")]),
        ([PROMPT], "", [("user", "go")]),
        ([PROMPT], [{"role": "system", "content": "s"}, PROMPT], [("user", "go"), ("system", "s"), ("user", "go")]),
    ],
)
def test_the_first_observation_follows_the_prompt(messages: Any, observation: Any, expected: Any) -> None:
    def once(method: str | None, arguments: dict[str, Any]) -> Any:
        return result(observation) if method == "reset" else result("", 1.0, True)

    task = a_task(*messages)
    trajectory = played(conversations.environment, ["x"], shared=SHARED, functions={"game episode": once}, task=task)
    assert [(message["role"], message["content"]) for message in trajectory.messages[:-1]] == expected


def test_the_environment_does_not_read_thoughts() -> None:
    text = "<think>\n5 is too low\n</think>\n\n7"
    trajectory = played(
        conversations.environment, [text], shared=SHARED, functions={"game episode": game}, template=chat_models.QWEN3
    )
    assert trajectory.environment_reward == 1.0


def test_an_environment_ends_with_the_turns() -> None:
    bounds = Bounds(turns=2, rows=1, response_tokens=4000, row_tokens=8000)
    trajectory = played(
        conversations.environment, ["1"] * 5, shared=SHARED, functions={"game episode": game}, bounds=bounds
    )
    assert trajectory.num_turns == 2
    assert trajectory.environment_reward == -0.5
    assert dict(trajectory.metrics)["environment_done"] == 0


def test_an_action_that_was_cut_off_is_not_taken() -> None:
    bounds = Bounds(turns=8, rows=1, response_tokens=2, row_tokens=8000)
    trajectory = played(
        conversations.environment, ["1 2 3 4"], shared=SHARED, functions={"game episode": game}, bounds=bounds
    )
    assert trajectory.truncated and trajectory.rewards == []


@pytest.mark.parametrize(("method", "num_turns"), [("reset", 0), ("step", 1)])
def test_an_environment_that_dies_costs_the_trajectory(method: str, num_turns: int) -> None:
    def dies(asked: str | None, arguments: dict[str, Any]) -> Any:
        return CallError("Died", "its process has ended") if asked == method else result("look")

    trajectory = played(conversations.environment, ["5"], shared=SHARED, functions={"game episode": dies})
    assert (trajectory.failed, trajectory.num_turns) == ("environment_died", num_turns)
    assert trajectory.message == f"game.{method}: its process has ended"


def test_a_job_without_environments_is_named() -> None:
    trajectory = played(conversations.environment, [])
    assert trajectory.failed == "environment" and "name one under" in trajectory.message
