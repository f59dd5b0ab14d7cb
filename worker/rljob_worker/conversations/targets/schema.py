"""JSON schemas of Python functions that a model may call, and whether arguments are as a schema says.

    def search(text: str, most: int = 5) -> list[str]:
        \"\"\"Find pages.

        Args:
            text: words to look for
        \"\"\"

becomes {"type": "function", "function": {"name": "search", "description": "Find pages.", "parameters": {...}}}.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NotRequired, Required, Union

from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.calls.loading import CALL_KEY, PICTURES
from rljob_worker.users_code.function import load_value

CLASS_METHOD = "call"
"""The method by which a class is a tool."""

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_WRITE = "write one of str, int, float, bool, list[...], dict[str, ...], Literal[...], a TypedDict, or a union of them"
_ARGS = re.compile(r"^\s*(Args|Arguments|Parameters):\s*$", re.MULTILINE)
_SECTION = re.compile(r"^\s*[A-Z][A-Za-z ]+:\s*$", re.MULTILINE)
_ENTRY = re.compile(r"^(\s*)\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")
_FIELD = re.compile(r"^\s*:param\s+(?:[\w\[\], .]+\s)?(\w+):\s*(.*)$")


def describe(run: str, options: Mapping[str, Any] | None = None, name: str | None = None) -> dict[str, Any]:
    """{"schema": ..., "method": ..., "sees": ...} of the function or class that `run` names: method is None for a
    function; sees: whether it is given the pictures of the prompt.

    options: keyword arguments that the job gives, which the model does not see.   name: what the model calls it; None:
    as the function is called. Raises InvalidJob: there is no such function, or it has a parameter that JSON cannot
    bring.
    """
    owner = f'tool "{name or run}"'
    value = load_value(owner, run)
    if inspect.isclass(value):
        method = getattr(value, CLASS_METHOD, None)
        if not callable(method):
            raise InvalidJob(f"{owner}: the class {run} has no method `{CLASS_METHOD}`, which is what the model calls")
        words = inspect.getdoc(method) or inspect.getdoc(value) or ""
        schema = function_schema(owner, method, name or _snake(value.__name__), hidden={"self"}, doc=words)
        return {"schema": schema, "method": CLASS_METHOD, "sees": _asks_for_pictures(owner, method)}
    if not callable(value):
        raise InvalidJob(f"{owner}: {run} is a {type(value).__name__}, not a function or class")
    hidden = set(options or {})
    parameters = inspect.signature(value).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if not takes_all and (unknown := sorted(hidden - parameters.keys())):
        raise InvalidJob(
            f"{owner}: the option {unknown[0]!r} is not a parameter of {run}; it has {', '.join(parameters)}"
        )
    schema = function_schema(owner, value, name or value.__name__, hidden=hidden)
    return {"schema": schema, "method": None, "sees": PICTURES not in hidden and _asks_for_pictures(owner, value)}


def function_schema(
    owner: str, function: Callable[..., Any], name: str, *, hidden: Iterable[str] = (), doc: str | None = None
) -> dict[str, Any]:
    """The schema of a function as chat templates take it. hidden: parameters that the model does not see. Raises
    InvalidJob, which begins with `owner`."""
    hints = _hints(owner, function)
    description, words = split_docstring(doc if doc is not None else inspect.getdoc(function) or "")
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in hidden or _is_given(parameter.name, hints):
            continue
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD and parameter.kind is not parameter.KEYWORD_ONLY:
            raise InvalidJob(f"{owner}: {parameter} cannot be given by name; a model gives arguments by name")
        if parameter.name not in hints:
            raise InvalidJob(f"{owner}: the parameter {parameter.name!r} has no type; {_WRITE}")
        schema = type_schema(f"{owner}: the parameter {parameter.name!r}", hints[parameter.name])
        if parameter.name in words:
            schema = schema | {"description": words[parameter.name]}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif _is_json(parameter.default):
            schema = schema | {"default": parameter.default}
        properties[parameter.name] = schema
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def type_schema(what: str, hint: Any) -> dict[str, Any]:
    """The JSON schema of a type. Raises InvalidJob, which begins with `what`, for a type that JSON cannot bring."""
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if hint is Any or hint is object:
        return {}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        notes = [note for note in arguments[1:] if isinstance(note, str)]
        return type_schema(what, arguments[0]) | ({"description": notes[0]} if notes else {})
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [type_schema(what, item) for item in arguments]}
    if hint is list or origin is list:
        return {"type": "array"} | ({"items": type_schema(what, arguments[0])} if arguments else {})
    if hint is dict or (origin is dict and arguments[0] is str):
        values = {"additionalProperties": type_schema(what, arguments[1])} if arguments else {}
        return {"type": "object"} | values
    if typing.is_typeddict(hint):
        return _typed_dict(what, hint)
    raise InvalidJob(f"{what} has the type {getattr(hint, '__name__', hint)}, which a model cannot write; {_WRITE}")


def split_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """What a docstring says of the function, and of its parameters by name: `Args:` sections and `:param name:`."""
    words: dict[str, str] = {}
    lines = []
    for line in doc.splitlines():
        if match := _FIELD.match(line):
            words[match.group(1)] = match.group(2).strip()
        else:
            lines.append(line)
    text = "\n".join(lines)
    if match := _ARGS.search(text):
        rest = text[match.end() :]
        end = _SECTION.search(rest)
        words |= _entries(rest[: end.start()] if end else rest)
        text = text[: match.start()]
    elif match := _SECTION.search(text):
        text = text[: match.start()]
    return text.strip(), words


def _entries(section: str) -> dict[str, str]:
    """`name: words` with lines that are indented further."""
    words: dict[str, str] = {}
    name, margin = "", -1
    for line in section.splitlines():
        match = _ENTRY.match(line)
        if match and (margin < 0 or len(match.group(1)) <= margin):
            name, margin = match.group(2), len(match.group(1))
            words[name] = match.group(3).strip()
        elif name and line.strip():
            words[name] = f"{words[name]} {line.strip()}".strip()
    return words


def _typed_dict(what: str, hint: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(hint, include_extras=True)
    properties, required = {}, []
    for key, value in hints.items():
        origin = typing.get_origin(value)
        inner = typing.get_args(value)[0] if origin in (Required, NotRequired) else value
        properties[key] = type_schema(f"{what}, key {key!r},", inner)
        # of postponed annotations, a TypedDict has not read which keys are not required
        if origin is Required or (origin is not NotRequired and key in hint.__required_keys__):
            required.append(key)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _is_given(parameter: str, hints: Mapping[str, Any]) -> bool:
    """Whether it is given besides what the model writes: the key of a call, the prompt's pictures."""
    return parameter == CALL_KEY or (parameter == PICTURES and hints.get(PICTURES) == list[bytes])


def _asks_for_pictures(owner: str, function: Callable[..., Any]) -> bool:
    return _hints(owner, function).get(PICTURES) == list[bytes]


def _hints(owner: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise InvalidJob(f"{owner}: its types cannot be read: {error}") from error


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def schema_fault(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with the arguments of a call, for the model to read: the first thing; None where nothing is.

    schema: of a function as chat templates take it, or of its parameters. Keywords of JSON schema that are not known
    here are left to the function.
    """
    parameters = schema.get("function", {}).get("parameters", {}) if "function" in schema else schema
    try:
        return next(_faults(parameters, dict(arguments), "the arguments", parameters), None)
    except RecursionError:  # a schema that refers to itself alone
        return None


def _faults(schema: Any, value: Any, where: str, root: Mapping[str, Any]) -> Iterator[str]:
    if schema is False:
        yield f"{where}: nothing may be here"
    if not isinstance(schema, Mapping):
        return
    if "$ref" in schema:
        yield from _faults(_resolved(schema["$ref"], root), value, where, root)
    allowed = schema.get("type")
    allowed = [allowed] if isinstance(allowed, str) else allowed
    if allowed and not any(_is_type(value, name) for name in allowed):
        yield f"{where}: {_shown(value)} is not of the type {' or '.join(allowed)}"
        return
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if choices is not None and not any(_equal(value, choice) for choice in choices):
        yield f"{where}: {_shown(value)} is none of {', '.join(map(_shown, choices))}"
    for part in schema.get("allOf", ()):
        yield from _faults(part, value, where, root)
    either = schema.get("anyOf") or schema.get("oneOf")
    if either and all(next(_faults(part, value, where, root), None) for part in either):
        # every branch has a fault; the first that has the value's type says most
        fitting = [part for part in either if isinstance(part, Mapping) and _is_type(value, part.get("type"))]
        fault = next(_faults(fitting[0], value, where, root), None) if fitting else None
        yield fault or f"{where}: {_shown(value)} is none of what may be here"
    yield from _bound_faults(schema, value, where)
    if isinstance(value, dict):
        yield from _object_faults(schema, value, where, root)
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from _faults(schema.get("items"), item, f"{where}[{place}]", root)


def _object_faults(
    schema: Mapping[str, Any], value: Mapping[str, Any], where: str, root: Mapping[str, Any]
) -> Iterator[str]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{where}: {name!r} is missing"
    for name, item in value.items():
        if name in properties:
            yield from _faults(properties[name], item, f"{where}: {name}", root)
        elif schema.get("additionalProperties") is False:
            yield f"{where}: there is no {name!r}; there are {', '.join(map(repr, properties)) or 'none'}"
        else:
            yield from _faults(schema.get("additionalProperties"), item, f"{where}: {name}", root)


def _bound_faults(schema: Mapping[str, Any], value: Any, where: str) -> Iterator[str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        size, names, what = value, ("minimum", "maximum"), "is"
    elif isinstance(value, str):
        size, names, what = len(value), ("minLength", "maxLength"), "has a length of"
    elif isinstance(value, list):
        size, names, what = len(value), ("minItems", "maxItems"), "has a length of"
    else:
        return
    least, most = (schema.get(name) for name in names)
    if least is not None and size < least:
        yield f"{where}: {what} {size}, less than {least}"
    if most is not None and size > most:
        yield f"{where}: {what} {size}, more than {most}"
    if isinstance(value, str) and "pattern" in schema and not _matches(schema["pattern"], value):
        yield f"{where}: {_shown(value)} does not match {schema['pattern']}"


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:  # one of another language
        return True


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    """`#/$defs/Name` of the schema; anything may be where a reference leads elsewhere."""
    value: Any = root
    for part in reference.removeprefix("#/").split("/"):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _is_type(value: Any, name: Any) -> bool:
    match name:
        case "integer":
            return (isinstance(value, int) and not isinstance(value, bool)) or (
                isinstance(value, float) and value.is_integer()
            )
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            kinds = {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None)}
            return name in kinds and isinstance(value, kinds[name])


def _equal(value: Any, choice: Any) -> bool:
    """JSON's true is not its 1."""
    return value == choice and isinstance(value, bool) == isinstance(choice, bool)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 100 else text[:100] + "..."
