"""A reward of the job as a checked callable; runs inside a reward process."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

from rljob_worker.errors import InvalidJob
from rljob_worker.rewards.access import ServiceAccess
from rljob_worker.rewards.forms import brought, in_row_form, row_columns
from rljob_worker.rewards.service import Service
from rljob_worker.users_code.function import check_call, load_function


class Description(TypedDict):
    """A reward as the worker describes it to its processes."""

    name: str
    run: str
    column: str | None
    columns: list[str]
    """Columns of the data, in every row."""
    options: dict[str, Any]
    access: ServiceAccess | None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A reward that can be called with a row, and the options as keywords."""

    function: Callable[..., Any]
    service: Service | None
    """What it asks; it has that as a keyword."""


def load(reward: Description) -> Loaded:
    """The function behind `run`, importable, callable and willing to take the row and the options.

    Raises InvalidJob: which reward, and why not.
    """
    owner, access = f'reward "{reward["name"]}"', reward["access"]
    result = load_function(owner, reward["run"])
    service = None if access is None else Service(access)
    columns = row_columns(reward["column"], reward["columns"])
    check_reward(owner, reward["run"], result, columns, reward["options"], asks_service=service is not None)
    function = in_row_form(result)
    return Loaded(function if service is None else partial(function, service=service), service)


def check_reward(
    owner: str,
    run: str,
    function: Callable[..., Any],
    columns: Collection[str],
    options: Mapping[str, Any],
    *,
    asks_service: bool,
) -> None:
    """Raises InvalidJob unless the function, as it was written, can be called as a reward of the job. columns: what a
    row has of the data."""
    given = {"service": "the service"} if asks_service else {}
    keywords = brought(function, columns)
    if keywords is None:
        check_call(owner, run, function, ["row"], {**options, **given})
    else:
        _check_keywords(owner, run, function, keywords, {**options, **given})
    if asks_service and not is_async(function):
        raise InvalidJob(f"{owner}: {run} asks a service and would wait for each row; declare it with `async def`")


def _check_keywords(
    owner: str, run: str, function: Callable[..., Any], keywords: Collection[str], options: Mapping[str, Any]
) -> None:
    """Check the keywords of a function in another trainer's form. keywords: what rows bring."""
    if twice := sorted(options.keys() & set(keywords)):
        raise InvalidJob(f"{owner}: {run} gets {twice[0]!r} from every row; take it out of the options")
    try:
        check_call(owner, run, function, (), options, list(keywords))
    except InvalidJob as error:
        raise InvalidJob(f"{error}. Rows bring those columns that rewards of the job name under `column`") from error


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
