"""Functions as a job names them: by their module, by their source, or pickled for processes of this machine."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from rljob_worker.errors import InvalidJob
from rljob_worker.users_code import pickled
from rljob_worker.users_code.function import as_name

Function = Callable[..., Any]

_LITERALS = (bool, int, float, str, bytes, type(None))


def module_name(function: Function) -> str | None:
    """`module:name` where another process can import the function so; None for one of a notebook or a script, or that
    was made inside another function."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__") or "<" in name:
        return None
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return f"{module}:{name}" if value is function else None


def name_of(function: Function) -> str:
    """What a job can call a reward."""
    return as_name(getattr(function, "__name__", type(function).__name__))


def pickle_into(folder: Path, function: Function) -> str:
    """Write the function by value, and name it. Raises InvalidJob for what cannot be pickled."""
    import dill  # a plain install lacks it

    name = name_of(function)
    try:
        content = dill.dumps(function, byref=False, recurse=True)
    except Exception as error:  # whatever objects raise that do not pickle
        raise InvalidJob(f"{name} cannot be sent to other processes: {type(error).__name__}: {error}") from error
    pickled.file_of(folder, name).write_bytes(content)
    return f"{pickled.__name__}:{name}"


def columns_read(function: Function, columns: Collection[str]) -> list[str]:
    """Those of the data's columns that the function names, as parameters or as texts of its source; all of them where
    there is no source to look at."""
    try:
        (definition,) = ast.parse(_source(function)).body
    except (InvalidJob, SyntaxError, ValueError):
        return list(columns)
    names = {item.arg for item in ast.walk(definition) if isinstance(item, ast.arg)}
    texts = {item.value for item in ast.walk(definition) if isinstance(item, ast.Constant)}
    return [column for column in columns if column in names | texts]


def module_of(functions: Collection[Function]) -> str:
    """A module with the sources of functions of a notebook, and of what they use: modules, other functions and plain
    values. Raises InvalidJob for a lambda, and for what has no source: a closure or an object."""
    imports: dict[str, str] = {}
    parts: dict[str, str] = {}
    for function in functions:
        _collect(function, imports, parts)
    return "\n".join([*sorted(imports.values()), "\n", *(f"{part}\n\n" for part in parts.values())])


def _collect(function: Function, imports: dict[str, str], parts: dict[str, str]) -> None:
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>" or function.__closure__:
        raise InvalidJob(
            f"{name_of(function)} goes to a cluster as source, and it is no plain function of a module or notebook: "
            "write it with def, without variables of a function around it"
        )
    if function.__name__ in parts:
        return
    source = _source(function)
    parts[function.__name__] = ""  # its place: a function may call itself, and what it uses comes first
    for name, value in _used(function, source).items():
        if isinstance(value, ModuleType):
            imports[name] = _import_of(name, value)
        elif (importable := _importable(value)) is not None:
            imports[name] = f"from {importable[0]} import {importable[1]} as {name}"
        elif isinstance(value, FunctionType):
            _collect(value, imports, parts)
        elif isinstance(value, _LITERALS) or _is_literal(value):
            parts.setdefault(name, f"{name} = {value!r}")
        else:
            raise InvalidJob(
                f"{function.__name__} uses {name}, a {type(value).__name__}, which has no source to send to a cluster; "
                "put both into a module"
            )
    del parts[function.__name__]
    parts[function.__name__] = source.rstrip()


def _source(function: Function) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise InvalidJob(f"the source of {name_of(function)} is not known: {error}") from None


def _used(function: FunctionType, source: str) -> Mapping[str, Any]:
    """Names of the module around the function that its source reads, with what they are."""
    names = [item.id for item in ast.walk(ast.parse(source)) if isinstance(item, ast.Name)]
    return {name: function.__globals__[name] for name in dict.fromkeys(names) if name in function.__globals__}


def _import_of(name: str, module: ModuleType) -> str:
    return f"import {name}" if module.__name__ == name else f"import {module.__name__} as {name}"


def _importable(value: Any) -> tuple[str, str] | None:
    """Module and name of what an installed module has."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or module == "__main__" or not isinstance(name, str) or "." in name:
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is value else None


def _is_literal(value: Any) -> bool:
    return isinstance(value, list | tuple | dict | set | frozenset) and all(map(_is_plain, _items(value)))


def _is_plain(value: Any) -> bool:
    return isinstance(value, _LITERALS) or _is_literal(value)


def _items(value: Any) -> Iterator[Any]:
    yield from ([*value.keys(), *value.values()] if isinstance(value, dict) else value)
