"""From `module:function` in a job to a callable that takes what it will be given, or the reason why there is none."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rljob_api.vocabulary.keys import MAX_NAME
from rljob_worker.errors import InvalidJob
from rljob_worker.users_code.search_path import why_hidden


def load_function(owner: str, run: str) -> Callable[..., Any]:
    """The function that `run` names. Raises InvalidJob as `load_value` does, and for what is not a function."""
    value = load_value(owner, run)
    if not callable(value):
        raise InvalidJob(f"{owner}: {run} is a {type(value).__name__}, not a function")
    function: Callable[..., Any] = value
    return function


def load_value(owner: str, run: str) -> Any:
    """What `run` names. Raises InvalidJob, which begins with `owner`, such as `stage style`: a module that is absent,
    is hidden by another of its name or fails to import, or that has no such thing."""
    where = f"{owner}: {run}"
    module_name, _, path = run.partition(":")
    if not module_name or not path:
        raise InvalidJob(f"{where} is not of the form module:function")
    return _attribute(where, _module(where, module_name), path)


def check_call(
    owner: str,
    run: str,
    function: Callable[..., Any],
    arguments: Sequence[str],
    options: Mapping[str, Any],
    keywords: Sequence[str] = (),
) -> None:
    """Raises InvalidJob unless the function can be called with these positional arguments, and these keywords besides
    the options. keywords: names of what each row brings."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # a builtin without a readable signature; the first call will tell
        return
    given = [*arguments, *(f"{name}=…" for name in keywords), *(f"{name}={value!r}" for name, value in options.items())]
    try:
        signature.bind(*arguments, **{**dict.fromkeys(keywords), **options})
    except TypeError as error:
        raise InvalidJob(
            f"{owner}: {run} cannot be called as ({', '.join(given)}): {error}; it is declared as {signature}"
        ) from error


def _module(where: str, name: str) -> ModuleType:
    if hidden := why_hidden(name):
        raise InvalidJob(f"{where}: {hidden}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise InvalidJob(
                f"{where} cannot be imported: no module {error.name!r} in {_search_path()}; put the file next to the "
                "job's YAML or into `code`"
            ) from error
        raise _import_failed(where, error) from error
    except (Exception, SystemExit) as error:  # user code runs here: whatever it raises, the job's owner must read it
        raise _import_failed(where, error) from error


def _import_failed(where: str, error: BaseException) -> InvalidJob:
    if isinstance(error, SyntaxError):
        return InvalidJob(f"{where} cannot be imported: SyntaxError: {error.msg} at {error.filename}:{error.lineno}")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_machinery(f.filename)]
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return InvalidJob(f"{where} cannot be imported: {type(error).__name__}: {error}{place}")


def _is_machinery(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen importlib") or filename == importlib.__file__


def _search_path() -> str:
    """Where user code may lie: the path without the interpreter's own folders."""
    own = [
        entry
        for entry in sys.path
        if entry and not Path(entry).is_relative_to(sys.base_prefix) and "site-packages" not in entry
    ]
    return ", ".join(own[-6:]) or "the installed packages"


def _attribute(where: str, module: ModuleType, path: str) -> Any:
    value: Any = module
    for part in path.split("."):
        if not hasattr(value, part):
            public = [name for name in getattr(value, "__all__", dir(value)) if not name.startswith("_")]
            near = difflib.get_close_matches(part, public, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; it has {', '.join(public[:20]) or 'nothing'}"
            raise InvalidJob(f"{where} does not exist: {module.__name__} has no {part!r}{hint}")
        value = getattr(value, part)
    return value


def as_name(name: str) -> str:
    """A name of Python's as one of a job's: at most 32 lower-case letters, digits and underscores, a letter first."""
    words = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return (words if words[:1].isalpha() else f"reward_{words}")[:MAX_NAME].rstrip("_")
