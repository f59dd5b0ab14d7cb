"""One environment of gymnasium's API as a simulator: what it returns is looked at before it counts.

    def make(**options) -> environment

    environment.reset(seed=7, options={"task": "push", "initial_state": "3"}) -> observation, info
    environment.step(action) -> observation, reward, terminated, truncated, info       info["success"]: is it done?
    environment.action_space        a Box
    environment.still_action        optional: what it is given while it settles; zeros where there is none
    environment.tasks()             optional: [{"task": "push", "instruction": "push the cube"}, …]
    environment.close()             optional

An observation is an array of numbers, the state, or a dictionary with such arrays and pictures, uint8 [height, width,
3].
What an episode is depends on seed, options and actions alone, and not on the episodes before it.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_worker.embodied.simulators.settings import FIELD, ActionBounds, Frame, SimulatorFailed, SimulatorSettings
from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.calls.outcomes import error_text
from rljob_worker.users_code.function import check_call, load_function

SUCCESS = "success"
_COMPRESSION = 1
"""The level of PNG: more makes pictures a little smaller and takes several times as long."""


class SimulatedEnvironment:
    """An environment, and what its observations have looked like so far."""

    def __init__(self, environment: Any, settings: SimulatorSettings) -> None:
        """Raises InvalidJob for what is no environment."""
        for method in ("reset", "step"):
            if not callable(getattr(environment, method, None)):
                raise InvalidJob(
                    f"{FIELD}.run: {settings.run} returned a {type(environment).__name__}, which has no {method}; "
                    "return an environment of gymnasium's API"
                )
        self._environment, self._settings = environment, settings
        self.bounds = action_bounds(environment, settings.run)
        still = _attribute(environment, "still_action")
        self._still = np.zeros_like(self.bounds.low) if still is None else np.asarray(still, np.float64)
        self._shapes: list[tuple[int, ...]] = []

    @staticmethod
    def make(settings: SimulatorSettings) -> SimulatedEnvironment:
        """A new one. Raises InvalidJob where none can be made, whatever user code raises."""
        function = load_function(f"{FIELD}.run", settings.run)
        check_call(f"{FIELD}.run", settings.run, function, (), settings.options)
        try:
            environment = function(**settings.options)
        except InvalidJob:
            raise
        except BaseException as error:
            raise InvalidJob(f"{FIELD}.run: {settings.run} makes no environment: {error_text(error)}") from error
        return SimulatedEnvironment(environment, settings)

    def reset(self, seed: int, options: Mapping[str, Any]) -> Frame:
        """Begin an episode, and let it settle. Raises SimulatorFailed, InvalidJob."""
        returned = self._environment.reset(seed=seed, options=dict(options))
        observation, _ = self._of_api("reset", returned, ("observation", "info"))
        for number in range(self._settings.settle_steps):
            observation, _, terminated, truncated, _ = self._stepped(self._still)
            if terminated or truncated:
                raise SimulatorFailed("raised", f"the episode ended in step {number + 1} of settleSteps")
        return self._results(observation, [], [], False)

    def step(self, actions: NDArray[np.float64], *, records: bool = False) -> Frame:
        """Take actions [steps, dimensions] one after another, until the episode is over. records: keep what the first
        camera shows after each of them. Raises SimulatorFailed, InvalidJob."""
        observation, rewards, successes, is_over = None, list[float](), list[bool | None](), False
        earlier = list[bytes]()
        for action in actions:
            if rewards and records:
                earlier.append(encoded(self._parts(observation)[0][0]))
            observation, reward, terminated, truncated, info = self._stepped(action)
            rewards.append(self._reward(reward))
            successes.append(success_of(info))
            is_over = bool(terminated or truncated)
            is_over |= bool(successes[-1]) and self._settings.stops_at_success
            if is_over:
                break
        return self._results(observation, rewards, successes, is_over, tuple(earlier))

    def tasks(self) -> list[dict[str, str]]:
        """What can be done in it, as rows of data. Raises InvalidJob where it does not list that."""
        lists = _attribute(self._environment, "tasks")
        if not callable(lists):
            raise InvalidJob(
                f"{FIELD}: the job has no data.train, and the environment of {self._settings.run} has no method "
                "`tasks` that lists its tasks; give data with the columns task and instruction, or add the method"
            )
        return [{str(name): str(value) for name, value in task.items() if value is not None} for task in lists()]

    def close(self) -> None:
        """End what it holds."""
        close = getattr(self._environment, "close", None)
        if callable(close):
            close()

    def _stepped(self, action: NDArray[np.float64]) -> tuple[Any, ...]:
        returned = self._environment.step(action.astype(self.bounds.dtype))
        return self._of_api("step", returned, ("observation", "reward", "terminated", "truncated", "info"))

    def _of_api(self, method: str, returned: Any, names: Sequence[str]) -> tuple[Any, ...]:
        if isinstance(returned, tuple) and len(returned) == len(names):
            return returned
        what = f"{len(returned)} values" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
        raise InvalidJob(
            f"{FIELD}.run: {method} of {self._settings.run} returned {what}; gymnasium's API is that it returns "
            f"{', '.join(names)}"
        )

    def _reward(self, reward: Any) -> float:
        try:
            value = float(reward)
        except (TypeError, ValueError):
            raise SimulatorFailed("bad_reward", f"the reward of a step is {reward!r:.50}, not a number") from None
        low, high = self._settings.reward_bounds or (-math.inf, math.inf)
        if not math.isfinite(value):
            raise SimulatorFailed("bad_reward", f"the reward of a step is {value}")
        if not low <= value <= high:
            raise SimulatorFailed(
                "bad_reward", f"the reward of a step is {value:g}, outside of {FIELD}.rewardBounds [{low:g}, {high:g}]"
            )
        return value

    def _results(
        self,
        observation: Any,
        rewards: list[float],
        successes: list[bool | None],
        is_over: bool,
        earlier: tuple[bytes, ...] = (),
    ) -> Frame:
        pixels, numbers = self._parts(observation)
        shapes = [item.shape for item in pixels] + ([] if numbers is None else [numbers.shape])
        if self._shapes and shapes != self._shapes:
            raise SimulatorFailed(
                "bad_observation",
                f"an observation has shapes {_words(shapes)}, and those before had {_words(self._shapes)}",
            )
        self._shapes = shapes
        if numbers is not None and not np.isfinite(numbers).all():
            at = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise SimulatorFailed("bad_observation", f"number {at} of the state is {numbers[at]}")
        pictures = tuple(map(encoded, pixels))
        digest = digest_of(pictures, numbers, rewards, successes, is_over)
        return Frame(pictures, numbers, tuple(rewards), tuple(successes), is_over, digest, earlier)

    def _parts(self, observation: Any) -> tuple[list[NDArray[np.uint8]], NDArray[np.float32] | None]:
        if not isinstance(observation, dict | Mapping):
            observation = {"observation": observation}
        cameras, states = self._settings.cameras, self._settings.state or ()
        if self._settings.state == ():
            states = tuple(name for name, item in observation.items() if is_state(item))
        if missing := [name for name in (*cameras, *states) if name not in observation]:
            raise SimulatorFailed(
                "bad_observation",
                f"an observation has no {missing[0]!r}; it has {', '.join(map(str, observation)) or 'nothing'}",
            )
        pixels = [np.asarray(observation[name]) for name in cameras]
        for name, item in zip(cameras, pixels, strict=True):
            if not is_picture(item):
                shape = f"{item.dtype} {list(item.shape)}"
                raise SimulatorFailed("bad_observation", f"camera {name!r} gives {shape}, not uint8 [height, width, 3]")
        numbers = [np.asarray(observation[name], np.float32).reshape(-1) for name in states]
        if not cameras and not numbers:
            raise SimulatorFailed("bad_observation", "an observation has no numbers, and no cameras are named")
        if len(numbers) == 1:
            return pixels, numbers[0]
        return pixels, np.concatenate(numbers) if numbers else None


def digest_of(
    pictures: Sequence[bytes],
    state: NDArray[np.float32] | None,
    rewards: list[float],
    successes: list[bool | None],
    is_over: bool,
) -> str:
    """Names all of it."""
    parts = [*pictures, b"" if state is None else state.tobytes()]
    framed = [piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)]
    said = repr((rewards, successes, is_over)).encode()
    return hashlib.blake2b(b"".join([*framed, said]), digest_size=8).hexdigest()


def action_bounds(environment: Any, run: str) -> ActionBounds:
    """The actions it takes. Raises InvalidJob for what is not a flat Box."""
    space = getattr(environment, "action_space", None)
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None or np.ndim(low) != 1 or np.shape(low) != np.shape(high):
        raise InvalidJob(
            f"{FIELD}.run: the environment of {run} has the action space {space!r}; a policy acts with a flat Box of "
            "continuous actions"
        )
    dtype = np.asarray(low).dtype
    return ActionBounds(np.asarray(low, np.float64), np.asarray(high, np.float64), dtype)


def success_of(info: Any) -> bool | None:
    """What a step says of success; None where it says nothing. Raises SimulatorFailed for what is no truth value."""
    value = info.get(SUCCESS) if isinstance(info, dict | Mapping) else None
    if value is None or isinstance(value, bool):
        return value
    numbers = np.asarray(value).reshape(-1)
    if len(numbers) != 1 or numbers.dtype.kind not in "biuf" or numbers[0] not in (0, 1):
        raise SimulatorFailed("bad_success", f'info["success"] is {value!r:.50}, neither true nor false')
    return bool(numbers[0])


def is_picture(array: NDArray[Any]) -> bool:
    """Whether it is uint8 [height, width, 3]."""
    return array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3


def is_state(item: Any) -> bool:
    """Whether it is numbers, and no picture."""
    array = np.asarray(item)
    return array.dtype.kind in "fiub" and not is_picture(array)


def encoded(pixels: NDArray[np.uint8]) -> bytes:
    """PNG of uint8 [height, width, 3]."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=_COMPRESSION)
    return file.getvalue()


def _attribute(environment: Any, name: str) -> Any:
    """An attribute of the environment itself, under what wraps it."""
    return getattr(getattr(environment, "unwrapped", environment), name, getattr(environment, name, None))


def _words(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)
