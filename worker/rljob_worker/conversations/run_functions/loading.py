"""The function that a job names to play its conversations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rljob_worker.errors import InvalidJob
from rljob_worker.users_code.function import check_call, load_function

ARGUMENTS = ("task", "policy", "world")


def load_run_function(owner: str, run: str) -> Callable[..., Any]:
    """The function of `module:function`. Raises InvalidJob, which begins with `owner`, unless it is `async` and takes
    task, policy and world."""
    function = load_function(owner, run)
    check_call(owner, run, function, ARGUMENTS, {})
    if not inspect.iscoroutinefunction(function):
        raise InvalidJob(f"{owner}: {run} waits for the policy and the world; declare it with `async def`")
    return function
