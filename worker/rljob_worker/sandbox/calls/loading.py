"""Targets of calls as checked functions and classes; runs inside the process that calls them."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_worker.errors import InvalidJob
from rljob_worker.users_code.function import check_call, load_value

CALL_KEY = "call_key"
"""The parameter by which a function asks for the key of a call."""
PICTURES = "pictures"
"""The parameter, a list of bytes, by which a function asks for the encoded pictures of the prompt."""
ENCODED_PICTURES = "rljob/pictures"
"""The argument that brings them: texts of base64."""


class CallRefused(Exception):
    """A call that does not fit what it calls; nothing of the user's has run."""


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A function, or a class of which each session has one object."""

    name: str
    value: Callable[..., Any]
    options: Mapping[str, Any]
    is_class: bool
    asynchronous: bool

    def method_name(self, method: str | None) -> str:
        """A public method of the class. Raises CallRefused for others."""
        if method is None:
            raise CallRefused(f'target "{self.name}" is a class: name the method to call')
        if method.startswith("_") or not callable(getattr(self.value, method, None)):
            public = [name for name in dir(self.value) if not name.startswith("_")]
            raise CallRefused(f'target "{self.name}" has no method {method!r}; it has {", ".join(public) or "none"}')
        return method

    def call(self, function: Callable[..., Any], method: str | None, arguments: Mapping[str, Any], key: str) -> Any:
        """Call a function with the arguments; a function that is no method gets the options besides. Raises CallRefused
        where it does not take them."""
        if not self.is_class and method is not None:
            raise CallRefused(f'target "{self.name}" is a function and has no method {method!r}')
        options = {} if self.is_class else self.options
        if twice := sorted(options.keys() & arguments.keys()):
            raise CallRefused(f'target "{self.name}": the argument {twice[0]!r} is set by the options')
        keywords = {**arguments, **options}
        if ENCODED_PICTURES in keywords:
            keywords[PICTURES] = [base64.b64decode(text) for text in keywords.pop(ENCODED_PICTURES)]
        try:
            signature = inspect.signature(function)
            if CALL_KEY in signature.parameters:
                keywords[CALL_KEY] = key
            signature.bind(**keywords)
        except TypeError as error:
            raise CallRefused(f'target "{self.name}" cannot be called so: {error}') from error
        except ValueError:  # a builtin without a readable signature: the call will tell
            pass
        return function(**keywords)


def load_targets(targets: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, LoadedTarget], dict[str, str]]:
    """Targets that can be called, and why the others cannot, by name."""
    loaded, refused = dict[str, LoadedTarget](), dict[str, str]()
    for name, target in targets.items():
        try:
            loaded[name] = _load(name, target["run"], target["options"])
        except InvalidJob as error:
            refused[name] = str(error)
    return loaded, refused


def _load(name: str, run: str, options: Mapping[str, Any]) -> LoadedTarget:
    owner = f'target "{name}"'
    value = load_value(owner, run)
    if not callable(value):
        raise InvalidJob(f"{owner}: {run} is a {type(value).__name__}, not a function or class")
    if inspect.isclass(value):
        check_call(owner, run, value, (), options)
        public = [item for attribute, item in inspect.getmembers(value) if not attribute.startswith("_")]
        return LoadedTarget(name, value, options, True, any(map(inspect.iscoroutinefunction, public)))
    return LoadedTarget(name, value, options, False, inspect.iscoroutinefunction(value))
