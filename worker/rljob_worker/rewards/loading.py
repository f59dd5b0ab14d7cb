"""A reward of the job as a checked callable; runs inside a reward process."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any, TypedDict

from rljob_worker.rewards.forms import in_row_form
from rljob_worker.users_function import check_call, load_function


class Description(TypedDict):
    """A reward as the worker describes it to its processes."""

    name: str
    run: str
    column: str | None
    options: dict[str, Any]


def load(reward: Description) -> Callable[..., Any]:
    """The function behind `run`, importable, callable and willing to take the row and the options.

    Raises InvalidJob: which reward, and why not.
    """
    owner = f'reward "{reward["name"]}"'
    function = in_row_form(load_function(owner, reward["run"]))
    check_call(owner, reward["run"], function, ["row"], reward["options"])
    return function


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def line_in(error: BaseException, file: str | None) -> str:
    """`file.py:17 in name` of the innermost frame in `file`, or of the innermost frame of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    if not frames:
        return "an unknown line"
    frame = (own or frames)[-1]
    line = f": {frame.line}" if frame.line else ""
    return f"{frame.filename}:{frame.lineno} in {frame.name}{line}"
