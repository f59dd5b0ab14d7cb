"""Problems of fields: unknown, missing, of the wrong type, out of range.  And a best guess at what was meant."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rljob_api.v1alpha1 import RLJob
from rljob_api.v1alpha1.data import NAME
from rljob_api.v1alpha1.infrastructure import GROUP_NAME
from rljob_api.vocabulary.model import ApiModel
from rljob_api.vocabulary.problem import Problem, nearest, suggestion
from rljob_api.vocabulary.quantity import QUANTITY

Location = tuple[int | str, ...]

MAX_FOUND_LENGTH = 80
MAX_WHOLE = (1 << 63) - 1


def check_structure(data: Any) -> tuple[RLJob | None, list[Problem]]:
    """The job that `data` is, and what is wrong with its fields.

    A misspelt field is taken for the nearest right one and a wrong value is left out, so that the checks which follow
    see as much of the job as can be made out; None when too little is left.
    """
    guess = copy.deepcopy(data)
    problems = [*_take_too_long(guess, ())]
    while True:
        try:
            return RLJob.model_validate(guess, by_alias=True, by_name=False), problems
        except ValidationError as error:
            details = [item for item in error.errors(include_url=False) if not _is_consequence(item)]
        # What was left out as wrong comes back as missing: one path, one problem.
        known = {problem.path for problem in problems}
        problems += [result for result in map(_problem_of, details) if result.path not in known]
        before = copy.deepcopy(guess)
        for detail in details:
            _repair(guess, detail)
        if guess == before:
            return None, problems


def _take_too_long(data: Any, location: Location) -> Iterator[Problem]:
    """Takes whole numbers out of `data` that no API server can store, and sums of which no float can hold."""
    entries = [*data.items()] if isinstance(data, dict) else [*enumerate(data)] if isinstance(data, list) else []
    for key, value in entries:
        here = (*location, key)
        if isinstance(value, int) and not -MAX_WHOLE - 1 <= value <= MAX_WHOLE:
            yield Problem(format_path(here), _shown(value), "the number is out of range", "It must fit in 64 bits.")
            if isinstance(data, dict):
                del data[key]
            else:
                data[key] = 0
        yield from _take_too_long(value, here)


def format_path(location: Location) -> str:
    """`("spec", "models", 0, "name")` as `spec.models[0].name`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _problem_of(error: ErrorDetails) -> Problem:
    location, kind, value = error["loc"], error["type"], error["input"]
    message, fix = _explain(error, location)
    result = "" if kind == "missing" else _shown({location[-1]: value} if kind == "extra_forbidden" else value)
    return Problem(format_path(location), result, message, fix)


def _is_consequence(error: ErrorDetails) -> bool:
    """Whether the error only follows from another: a default that could not be made, a list whose entries are wrong."""
    if error["type"] == "too_short":
        return bool(len(error["input"]) >= error["ctx"]["min_length"])
    return error["type"] == "default_factory_not_called"


def _explain(error: ErrorDetails, location: Location) -> tuple[str, str]:
    """(what is wrong, what to do) for a user who never heard of pydantic."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return "there is no such field", suggestion(str(location[-1]), _fields_at(location[:-1]))
    if kind == "missing":
        return "a required field is missing", f"Add {location[-1]}."
    if kind == "literal_error":
        return "the value is not one of those known", suggestion(str(error["input"]), _expected(error))
    if kind == "string_pattern_mismatch":
        return "the text has the wrong form", _FORMS.get(context["pattern"], f"It must match {context['pattern']}.")
    if kind in _TYPES:
        return f"it must be {_TYPES[kind]}", _type_fix(kind, error["input"])
    if (bound := next((name for name in _BOUNDS if name in context), None)) is not None:
        return "the number is out of range", f"It must be {_BOUNDS[bound]} {context[bound]}."
    if "min_length" in context or "max_length" in context:
        return _length(kind, context)
    return error["msg"][0].lower() + error["msg"][1:], "Change the value."


_FORMS = {
    NAME: "Write lower-case letters, digits and underscores, a letter first, at most 32.",
    GROUP_NAME: "Write lower-case letters and digits, a letter first, at most 12.",
    QUANTITY: "Write a number of bytes such as 16Gi or 500M.",
}

_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping of fields",
    "model_attributes_type": "a mapping of fields",
}

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def _type_fix(kind: str, value: Any) -> str:
    if kind in ("int_type", "float_type", "bool_type") and isinstance(value, str):
        return (
            "Write it without quotes." if re.fullmatch(r"[-+0-9.eE]+|true|false", value) else f"Write {_TYPES[kind]}."
        )
    if kind == "string_type" and isinstance(value, (int, float, bool)):
        return "Put it in quotes."
    if kind == "tuple_type":
        return "Write [...], or one line with a dash for each entry."
    return f"Write {_TYPES[kind]}."


def _length(kind: str, context: dict[str, Any]) -> tuple[str, str]:
    """What is wrong with the length of a text or a list, and what to do."""
    what, parts, part = ("text", "characters", "text") if kind.startswith("string") else ("list", "entries", "an entry")
    if "max_length" in context:
        return f"the {what} has more than {context['max_length']} {parts}", f"Leave some {parts} out."
    least = context["min_length"]
    return (
        (f"the {what} is empty", f"Write {part}.")
        if least == 1
        else (f"the {what} has fewer than {least} {parts}", f"Write {least} {parts}.")
    )


def _expected(error: ErrorDetails) -> list[str]:
    return re.findall(r"'([^']*)'", error.get("ctx", {}).get("expected", ""))


def _repair(data: Any, error: ErrorDetails) -> None:
    """Change `data` in place to what was probably meant; leave out what cannot be guessed."""
    *above, last = error["loc"] or ("",)
    holder = _at(data, tuple(above))
    if not isinstance(holder, dict) or last not in holder:
        return
    value = holder.pop(last)
    if error["type"] == "extra_forbidden":
        match = nearest(str(last), _fields_at(tuple(above)))
        if match is not None and match not in holder:
            holder[match] = value
    elif error["type"] == "literal_error" and (match := nearest(str(value), _expected(error))) is not None:
        holder[last] = match


def _at(data: Any, location: Location) -> Any:
    for part in location:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _fields_at(location: Location) -> list[str]:
    """Spellings, as in YAML, of the fields of the model at `location`."""
    model: type[BaseModel] = RLJob
    for part in location:
        if isinstance(part, str):
            annotation = next(f.annotation for f in model.model_fields.values() if f.alias == part)
            below = model_in(annotation)
            assert below is not None, f"{location} cannot have fields"
            model = below
    return [alias for field in model.model_fields.values() if (alias := field.alias) is not None]


def model_in(annotation: Any) -> type[ApiModel] | None:
    """The model that an annotation is, may be, or lists: `X`, `X | None`, `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return annotation
    return next((model for arg in get_args(annotation) if (model := model_in(arg)) is not None), None)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_FOUND_LENGTH else text[: MAX_FOUND_LENGTH - 3] + "..."
