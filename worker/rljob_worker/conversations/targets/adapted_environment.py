"""A user's environment as the conversations call it: whatever its methods return becomes JSON of one form.

    reset(seed, **columns) -> observation         text or messages, alone or as in gymnasium with a dictionary
    step(text) -> observation, reward, done       or five values as in gymnasium, or an object or a dictionary
                                                  with these names

Columns that `reset` does not take are left out. Methods may be asynchronous. Runs beside the user's code.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import math
from collections.abc import Mapping
from typing import Any

from rljob_worker.conversations.picture_parts import is_content
from rljob_worker.errors import InvalidJob
from rljob_worker.users_code.function import check_call, load_function, load_value

TEXTS = ("text", "observation", "content", "prompt", "message", "messages")
"""Fields of an observation that is an object, of which the first that there is is what the model reads."""


def episode_target(name: str) -> str:
    """What is called for an environment whose methods return one form (`AdaptedEnvironment`); its name alone calls the
    user's class itself."""
    return f"{name} episode"


class AdaptedEnvironment:
    """One trajectory's environment."""

    def __init__(self, run: str, options: Mapping[str, Any]) -> None:
        """run: `module:Class`, or a function that returns an environment.   options: its keyword arguments."""
        self._environment = load_value("environment", run)(**options)
        self._loop: asyncio.AbstractEventLoop | None = None

    def reset(self, seed: int, columns: Mapping[str, Any]) -> dict[str, Any]:
        """{"observation", "reward", "done", "metrics"} where an episode begins."""
        reset = self._environment.reset
        return reset_result(self._awaited(reset(**taken(reset, {**columns, "seed": seed}))))

    def step(self, text: str) -> dict[str, Any]:
        """{"observation", "reward", "done", "metrics"} after what the policy said."""
        return step_result(self._awaited(self._environment.step(text)))

    def close(self) -> None:
        """End the environment, where it has a method for that."""
        close = getattr(self._environment, "close", None)
        if callable(close):
            self._awaited(close())
        if self._loop is not None:
            self._loop.close()

    def _awaited(self, value: Any) -> Any:
        if not inspect.isawaitable(value):
            return value
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(_result_of(value))


class AsyncAdaptedEnvironment:
    """One trajectory's environment whose methods are asynchronous, beside those of other trajectories."""

    def __init__(self, run: str, options: Mapping[str, Any]) -> None:
        """run: `module:Class`, or a function that returns an environment.   options: its keyword arguments."""
        self._environment = load_value("environment", run)(**options)

    async def reset(self, seed: int, columns: Mapping[str, Any]) -> dict[str, Any]:
        """{"observation", "reward", "done", "metrics"} where an episode begins."""
        reset = self._environment.reset
        return reset_result(await _result_of(reset(**taken(reset, {**columns, "seed": seed}))))

    async def step(self, text: str) -> dict[str, Any]:
        """{"observation", "reward", "done", "metrics"} after what the policy said."""
        return step_result(await _result_of(self._environment.step(text)))

    async def close(self) -> None:
        """End the environment, where it has a method for that."""
        close = getattr(self._environment, "close", None)
        if callable(close):
            await _result_of(close())


def is_asynchronous(name: str, run: str, options: Mapping[str, Any]) -> bool:
    """Whether an environment's `step` is asynchronous. Raises InvalidJob, which names the environment: there is no such
    class, or it does not take these options."""
    owner = f'environment "{name}"'
    value = load_function(owner, run)
    check_call(owner, run, value, (), options)
    if inspect.isclass(value) and not all(callable(getattr(value, method, None)) for method in ("reset", "step")):
        raise InvalidJob(f"{owner}: {run} needs methods `reset(seed, **columns)` and `step(text)`")
    return inspect.iscoroutinefunction(getattr(value, "step", None))


async def _result_of(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def taken(function: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a function takes by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return dict(arguments)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(arguments)
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in arguments.items() if name in names}


def reset_result(value: Any) -> dict[str, Any]:
    """What `reset` returned. Raises TypeError, ValueError: it is not an observation."""
    if isinstance(value, tuple):
        if len(value) != 2 or not isinstance(value[1], Mapping):
            raise TypeError(f"reset returned {len(value)} values; return the observation, or it and a dictionary")
        value = value[0]
    fields = _fields(value)
    if fields is None or "observation" not in fields:
        return _result("reset", value, 0.0, False, {})
    return _result("reset", fields["observation"], fields.get("reward"), _is_done(fields), fields.get("metrics"))


def step_result(value: Any) -> dict[str, Any]:
    """What `step` returned. Raises TypeError, ValueError: it is not observation, reward and done."""
    if isinstance(value, tuple):
        match value:
            case (observation, reward, done):
                return _result("step", observation, reward, done, {})
            case (observation, reward, done, Mapping() as info):
                return _result("step", observation, reward, done, info.get("metrics"))
            case (observation, reward, terminated, truncated, Mapping() as info):
                return _result("step", observation, reward, bool(terminated) or bool(truncated), info.get("metrics"))
        raise TypeError(f"step returned {len(value)} values; return observation, reward and done")
    fields = _fields(value)
    if fields is None or "reward" not in fields:
        raise TypeError(
            f"step returned a {type(value).__name__}; return observation, reward and done, or an object that has them"
        )
    return _result("step", fields.get("observation", ""), fields["reward"], _is_done(fields), fields.get("metrics"))


def _result(method: str, observation: Any, reward: Any, done: Any, metrics: Any) -> dict[str, Any]:
    numbers = {str(name): _number(method, f"metric {name}", value) for name, value in (metrics or {}).items()}
    number = 0.0 if reward is None else _number(method, "reward", reward)
    shown = observation_text(method, observation)
    return {"observation": shown, "reward": number, "done": bool(done), "metrics": numbers}


def _number(method: str, what: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{method} returned the {what} {value!r}, which is not a number") from error
    if not math.isfinite(number):
        raise ValueError(f"{method} returned the {what} {number}, which is not finite")
    return number


def observation_text(method: str, observation: Any) -> str | list[dict[str, Any]]:
    """An observation as text, or as messages or parts with pictures where it is a list of them."""
    if observation is None:
        return ""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, bytes | bytearray | memoryview):
        raise TypeError(f"{method} returned an observation of bytes; decode it to text")
    if isinstance(observation, list) and observation and all(_is_message(item) for item in observation):
        return [dict(item) for item in observation]
    if is_content(observation):
        return list(observation)
    fields = _fields(observation)
    if fields is not None:
        first = next((fields[name] for name in TEXTS if fields.get(name)), None)
        is_messages = isinstance(first, list) and bool(first) and all(map(_is_message, first))
        if isinstance(first, str) or is_messages or is_content(first):
            return observation_text(method, first)
        observation = fields
    if hasattr(observation, "tolist"):
        observation = observation.tolist()
    try:
        return json.dumps(observation, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{method} returned an observation that is neither text nor JSON: {error}") from error


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and "content" in value


def _is_done(fields: Mapping[str, Any]) -> bool:
    return any(bool(fields.get(name)) for name in ("done", "terminated", "truncated"))


def _fields(value: Any) -> dict[str, Any] | None:
    """A dictionary, dataclass, named tuple or model of pydantic by its fields; None for other values."""
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if callable(getattr(value, "model_dump", None)):
        dumped: dict[str, Any] = value.model_dump()
        return dumped
    return None
