"""From `module:function` in a job to a checked callable; runs inside a reward process."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

from rljob_worker.users_code import why_hidden


class Description(TypedDict):
    """A reward as the worker describes it to its processes."""

    name: str
    run: str
    column: str | None
    options: dict[str, Any]


class Refused(Exception):
    """The job names a reward that cannot be called; the message says which and why."""


def load(reward: Description) -> Callable[..., Any]:
    """The function behind `run`, importable, callable and willing to take the row and the options.

    Raises Refused.
    """
    where = f'reward "{reward["name"]}": {reward["run"]}'
    module_name, _, path = reward["run"].partition(":")
    if not module_name or not path:
        raise Refused(f"{where} is not of the form module:function")
    function = _attribute(where, _module(where, module_name), path)
    _check_call(where, function, reward["options"])
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


def _module(where: str, name: str) -> ModuleType:
    if hidden := why_hidden(name):
        raise Refused(f"{where}: {hidden}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise Refused(f"{where} cannot be imported: no module {error.name!r} in {_search_path()}") from error
        raise _import_failed(where, error) from error
    except (Exception, SystemExit) as error:  # user code runs here: whatever it raises, the job's owner must read it
        raise _import_failed(where, error) from error


def _import_failed(where: str, error: BaseException) -> Refused:
    if isinstance(error, SyntaxError):
        return Refused(f"{where} cannot be imported: SyntaxError: {error.msg} at {error.filename}:{error.lineno}")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_machinery(f.filename)]
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return Refused(f"{where} cannot be imported: {type(error).__name__}: {error}{place}")


def _is_machinery(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen importlib") or filename == importlib.__file__


def _search_path() -> str:
    """Where user code may lie: the path without the interpreter's own folders."""
    own = [
        entry
        for entry in sys.path
        if entry and not Path(entry).is_relative_to(sys.base_prefix) and "site-packages" not in entry
    ]
    return ", ".join(own[:6]) or "the installed packages"


def _attribute(where: str, module: ModuleType, path: str) -> Callable[..., Any]:
    value: Any = module
    for part in path.split("."):
        if not hasattr(value, part):
            public = [name for name in getattr(value, "__all__", dir(value)) if not name.startswith("_")]
            near = difflib.get_close_matches(part, public, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; it has {', '.join(public[:20]) or 'nothing'}"
            raise Refused(f"{where} does not exist: {module.__name__} has no {part!r}{hint}")
        value = getattr(value, part)
    if not callable(value):
        raise Refused(f"{where} is a {type(value).__name__}, not a function")
    function: Callable[..., Any] = value
    return function


def _check_call(where: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # a builtin without a readable signature; the first row will tell
        return
    try:
        signature.bind({}, **options)
    except TypeError as error:
        given = ", ".join(["row", *(f"{name}={value!r}" for name, value in options.items())])
        raise Refused(f"{where} cannot be called as ({given}): {error}; it is declared as {signature}") from error
