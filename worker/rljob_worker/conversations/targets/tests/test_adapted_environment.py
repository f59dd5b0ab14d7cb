"""Whatever an environment's methods return becomes one form, or an error that says what to return."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from rljob_worker.conversations.targets.adapted_environment import (
    AdaptedEnvironment,
    AsyncAdaptedEnvironment,
    is_asynchronous,
    reset_result,
    step_result,
)

MODULE = "rljob_worker.conversations.targets.tests.user_environments"


def adapted(name: str, **options: Any) -> AdaptedEnvironment:
    return AdaptedEnvironment(f"{MODULE}:{name}", options)


def result(observation: Any, reward: float = 0.0, done: bool = False, metrics: Any = None) -> dict[str, Any]:
    return {"observation": observation, "reward": reward, "done": done, "metrics": metrics or {}}


def test_tuples_are_observation_reward_and_done() -> None:
    environment = adapted("Tuples", by=2)
    # a column that reset does not take is left out
    assert environment.reset(3, {"name": "Ada", "answer": "4"}) == result("Ada: 3 left")
    assert environment.step("go") == result("go: 1 left", 0.5)
    assert environment.step("go") == result("go: -1 left", 0.5, True)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("Dataclasses", result("3 ['a']"), result("go", 1.0, True, {"length": 2.0})),
        (
            "Dictionaries",
            result([{"role": "user", "content": "look"}]),
            result('{"board": [1, 2], "turn": 3}', 0.0, True),
        ),
        ("Gymnasium", result("begin"), result("go", 1.0, True, {"hits": 2.0})),
        ("Asynchronous", result("begin"), result("go", 1.0, True)),
    ],
)
def test_objects_dictionaries_and_coroutines_are_taken(name: str, first: Any, second: Any) -> None:
    environment = adapted(name)
    assert environment.reset(3, {"a": "b"}) == first
    assert environment.step("go") == second
    environment.close()


def test_a_function_may_make_the_environment() -> None:
    assert adapted("made", by=2).reset(3, {}) == result("nobody: 3 left")


def test_asynchronous_environments_are_played_beside_each_other() -> None:
    async def play() -> list[dict[str, Any]]:
        environment = AsyncAdaptedEnvironment(f"{MODULE}:Asynchronous", {})
        results = [await environment.reset(3, {"a": "b"}), await environment.step("go")]
        await environment.close()
        return results

    assert asyncio.run(play()) == [result("begin"), result("go", 1.0, True)]
    assert is_asynchronous("x", f"{MODULE}:Asynchronous", {})
    assert not is_asynchronous("x", f"{MODULE}:Tuples", {}) and not is_asynchronous("x", f"{MODULE}:made", {"by": 1})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (("a", 1.0), "step returned 2 values; return observation, reward and done"),
        ("a", "step returned a str; return observation, reward and done, or an object that has them"),
        (("a", float("nan"), False), "step returned the reward nan, which is not finite"),
        (("a", "much", False), "step returned the reward 'much', which is not a number"),
        ((b"a", 1.0, False), "step returned an observation of bytes; decode it to text"),
        (({"a": b"b"}, 1.0, False), "step returned an observation that is neither text nor JSON"),
        (({"a": float("nan")}, 1.0, False), "step returned an observation that is neither text nor JSON"),
        (("a", 1.0, True, {"metrics": {"x": float("inf")}}), "step returned the metric x inf, which is not finite"),
    ],
)
def test_other_results_of_a_step_are_refused_with_what_to_return(value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        step_result(value)
    assert str(error.value).startswith(message)


def test_numbers_of_numpy_are_numbers() -> None:
    assert step_result((np.array([1, 2]), np.float32(0.5), np.True_)) == result("[1, 2]", 0.5, True)
    assert step_result(("a", True, 0)) == result("a", 1.0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, result("")),
        (("a", {"x": 1}), result("a")),
        ({"observation": {"text": "a", "board": [1]}}, result("a")),
        ({"board": [1]}, result('{"board": [1]}')),
        ([1, 2], result("[1, 2]")),
        ({"observation": "a", "done": True}, result("a", 0.0, True)),
    ],
)
def test_what_reset_returns_is_an_observation(value: Any, expected: Any) -> None:
    assert reset_result(value) == expected


def test_other_results_of_reset_are_refused() -> None:
    with pytest.raises(TypeError, match="reset returned 3 values; return the observation, or it and a dictionary"):
        reset_result(("a", 1.0, False))
