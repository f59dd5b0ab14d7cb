"""One reward on one row: call it, check its answer, say what went wrong; runs inside a reward process.

An outcome is a JSON value:
    {"reward": 1.0, "metrics": {"length": 12.0}}
    {"reward": 1.0, "metrics": {}, "answer": "42"}             null where it found none in the response
    {"reward": 1.0, "metrics": {}, "step_rewards": [[7, 0.5]]}  characters up to the end of each step, and its reward
    {"problem": "raised ZeroDivisionError: division by zero at my.py:3 in style: x = 1 / 0"}
    {"timeout": true}
"""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from rljob_worker.rewards.forms import BadAnswer
from rljob_worker.rewards.loading import line_in
from rljob_worker.rewards.service import ServiceError

Outcome = dict[str, Any]


class Row(dict[str, Any]):
    """What a reward is given: prompt, response, the dataset's columns."""

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"the row has no {name!r}; it has {', '.join(sorted(self))}")


def evaluate(function: Callable[..., Any], row: Row, options: dict[str, Any]) -> Outcome:
    """The outcome of a plain function."""
    try:
        answer = function(row, **options)
        if inspect.iscoroutine(answer):
            answer.close()
            raise BadAnswer("returned a coroutine; declare the function with `async def`")
        return _outcome(answer, row)
    except BadAnswer as error:
        return {"problem": str(error)}
    except (
        Exception,
        SystemExit,
        KeyboardInterrupt,
    ) as error:  # user code: whatever it raises is reported with its row
        return _raised(error, function)


async def evaluate_async(
    function: Callable[..., Awaitable[Any]], row: Row, options: dict[str, Any], limit_seconds: float
) -> Outcome:
    """The outcome of an `async def` function, which is cancelled after `limit_seconds`.

    The cancelled task is not awaited: one that refuses to end would hold the row for ever.
    """
    task = asyncio.ensure_future(function(row, **options))
    done, _ = await asyncio.wait({task}, timeout=limit_seconds)
    if not done:
        task.cancel()
        return {"timeout": True}
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if isinstance(error, ServiceError | BadAnswer):
        return {"problem": str(error)}
    if error is not None:
        return _raised(error, function)
    try:
        return _outcome(task.result(), row)
    except BadAnswer as error:
        return {"problem": str(error)}


def _outcome(answer: Any, row: Row) -> Outcome:
    if not isinstance(answer, dict):
        return {"reward": _number(answer, "a number or a dict with `reward`"), "metrics": {}}
    if "reward" not in answer:
        raise BadAnswer(f"returned a dict without `reward`; its keys are {', '.join(map(str, answer)) or 'none'}")
    figures = {str(name): value for name, value in answer.items() if name not in _SAID and _is_number(value)}
    outcome = {
        "reward": _number(answer["reward"], "a number as `reward`"),
        "metrics": {name: _number(value, f"a number as `{name}`") for name, value in figures.items()},
    }
    if "step_rewards" in answer:
        outcome["step_rewards"] = _step_rewards(answer["step_rewards"], row)
    return outcome | ({"answer": _answer(answer["answer"])} if "answer" in answer else {})


_SAID = ("reward", "answer", "step_rewards")
"""What a dict says of a row besides figures for the metrics."""


def _step_rewards(value: Any, row: Row) -> list[tuple[int, float]]:
    """Steps in the order of the response, each of which ends within it."""
    wanted, longest = "[end, reward] of each step as `step_rewards`", len(row["response"])
    listed = isinstance(value, list | tuple)
    if not listed or not all(isinstance(item, list | tuple) and len(item) == 2 for item in value):
        raise BadAnswer(f"returned {_short(value)}, not {wanted}")
    steps, last = list[tuple[int, float]](), 0
    for end, reward in value:
        if isinstance(end, bool) or not hasattr(end, "__index__") or not last <= int(end) <= longest:
            raise BadAnswer(
                f"returned a step that ends at {_short(end)}, not at a character from {last} to {longest}, where the "
                "response ends"
            )
        last = int(end)
        steps.append((last, _number(reward, f"a number as the reward of the step that ends at {last}")))
    return steps


def _answer(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if not _is_number(value):
        raise BadAnswer(f"returned {_short(value)} as `answer`, not a text, a number or None")
    return str(value)


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") or hasattr(value, "__index__")


def _number(value: Any, wanted: str) -> float:
    if not _is_number(value):
        raise BadAnswer(f"returned {_short(value)}, not {wanted}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadAnswer(f"returned {_short(value)}, not {wanted}: {error}") from error
    if not math.isfinite(number):
        raise BadAnswer(f"returned {number}, not {wanted} that is finite")
    return number


def _short(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}" if value is not None else "None"
    return text if len(text) <= 80 else text[:77] + "..."


def _raised(error: BaseException, function: Callable[..., Any]) -> Outcome:
    traceback.print_exception(error)
    code = getattr(inspect.unwrap(getattr(function, "func", function)), "__code__", None)
    sys.stderr.flush()
    return {
        "problem": f"raised {type(error).__name__}: {error} at {line_in(error, code.co_filename if code else None)}"
    }
