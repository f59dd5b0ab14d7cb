"""What an environment returns is looked at before it counts."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rljob_worker.embodied.simulators.environment import SimulatedEnvironment
from rljob_worker.embodied.simulators.settings import ActionBounds, SimulatorFailed
from rljob_worker.embodied.simulators.tests.pools import settings
from rljob_worker.embodied.simulators.tests.worlds import Plane
from rljob_worker.errors import InvalidJob

STILL = np.zeros((1, 2))


def simulated(task: str = "", *, pictures: bool = False, **changes: Any) -> SimulatedEnvironment:
    seen = {"cameras": ("front",), "state": ("state",)} if pictures else {}
    result = SimulatedEnvironment(Plane(pictures=pictures), settings(**seen, **changes))
    result.reset(7, {"task": task})
    return result


def test_an_observation_is_its_pictures_as_png_and_its_numbers_as_state() -> None:
    results = simulated(pictures=True).step(np.array([[1.0, 0.0], [0.5, 0.0]]))  # half of 1.0 + 0.5
    (picture,) = results.pictures
    assert results.state is not None and results.state[:2].tolist() == [0.75, 0.0]
    pixels = np.asarray(Image.open(io.BytesIO(picture)))
    assert pixels.shape == (8, 8, 3) and np.argwhere(pixels[..., 0]).tolist() == [[7, 4]]
    assert len(results.rewards) == 2 and results.successes == (False, False) and not results.is_over


def test_an_episode_ends_with_the_step_that_succeeds_unless_it_is_to_go_on() -> None:
    goal = np.random.default_rng(7).uniform(-1, 1, 2)
    actions = np.stack([2 * goal, np.zeros(2), np.zeros(2)])  # a step goes half of its action
    stopped, ongoing = (simulated(stops_at_success=stops).step(actions) for stops in (True, False))
    assert (stopped.successes, stopped.is_over) == ((True,), True)
    assert (ongoing.successes, ongoing.is_over) == ((True, True, True), False)


def test_it_settles_with_its_still_action_before_anything_is_seen() -> None:
    plane = Plane()
    plane.still_action = np.array([0.5, 0.0])  # type: ignore[attr-defined]
    results = SimulatedEnvironment(plane, settings(settle_steps=3)).reset(7, {})
    assert results.state is not None and results.state[:2].tolist() == [0.75, 0.0] and results.rewards == ()


def test_equal_seeds_and_actions_have_equal_digests() -> None:
    digests = [simulated(pictures=True).step(np.full((2, 2), push)).digest for push in (0.1, 0.1, 0.2)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("task", "changes", "cause", "words"),
    [
        ("nan", {}, "bad_observation", "number 1 of the state is nan"),
        ("longer", {}, "bad_observation", r"has shapes \[8\], and those before had \[4\]"),
        ("nan_reward", {}, "bad_reward", "the reward of a step is nan"),
        ("no_reward", {}, "bad_reward", "the reward of a step is None, not a number"),
        ("", {"reward_bounds": (0.0, 1.0)}, "bad_reward", r"outside of rollout.simulator.rewardBounds \[0, 1\]"),
        ("unsure", {}, "bad_success", "is 'perhaps', neither true nor false"),
        ("", {"cameras": ("top",)}, "bad_observation", "has no 'top'; it has observation"),
        ("", {"cameras": ("observation",)}, "bad_observation", r"gives float32 \[4\], not uint8"),
    ],
)
def test_what_no_policy_can_learn_from_costs_the_episode(
    task: str, changes: dict[str, Any], cause: str, words: str
) -> None:
    with pytest.raises(SimulatorFailed, match=words) as raised:
        simulated(task, **changes).step(np.ones((1, 2)))
    assert raised.value.cause == cause


@pytest.mark.parametrize(
    "environment", [object(), SimpleNamespace(reset=print, step=print, action_space="Discrete(3)")]
)
def test_what_is_no_environment_of_continuous_actions_is_refused(environment: object) -> None:
    with pytest.raises(InvalidJob, match=r"rollout.simulator.run: .*(has no reset|a flat Box of continuous actions)"):
        SimulatedEnvironment(environment, settings())


@pytest.mark.parametrize(
    ("method", "returns", "words"),
    [
        ("reset", np.zeros(4), "reset of .*:plane returned a ndarray; .* it returns observation, info"),
        ("step", (np.zeros(4), 0.0, True, {}), "step of .*:plane returned 4 values; .* reward, terminated, truncated"),
    ],
)
def test_an_environment_of_another_api_is_refused(method: str, returns: Any, words: str) -> None:
    plane = Plane()
    setattr(plane, method, lambda *_, **__: returns)
    environment = SimulatedEnvironment(plane, settings())
    with pytest.raises(InvalidJob, match=words):
        environment.reset(7, {})
        environment.step(STILL)


def test_actions_are_clipped_to_what_the_environment_takes() -> None:
    bounds = ActionBounds(np.array([-1.0, -np.inf]), np.array([1.0, np.inf]))
    actions, was_outside = bounds.clipped(np.array([[1.5, 9.0], [1.0 + 1e-9, 0.0]]))
    assert actions.tolist() == [[1.0, 9.0], [1.0, 0.0]]
    assert was_outside.tolist() == [[True, False], [False, False]]
    with pytest.raises(InvalidJob, match="have 7 dimensions, and an action of the simulator has 2"):
        bounds.clipped(np.zeros((1, 7)))


def test_a_video_has_the_picture_after_each_step() -> None:
    environment = simulated(pictures=True)
    actions = np.array([[0.5, 0.0], [0.5, 0.0], [0.5, 0.0]])
    step_by_step = [environment.step(action[None]).pictures[0] for action in actions]
    assert environment.reset(7, {}).earlier == ()
    result = environment.step(actions, records=True)
    assert [*result.earlier, result.pictures[0]] == step_by_step and len(set(step_by_step)) > 1
    assert environment.step(actions).earlier == ()
