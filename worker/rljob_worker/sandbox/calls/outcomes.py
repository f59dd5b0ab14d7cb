"""What a call came to, as the JSON that goes back to the worker; made beside the user code."""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_MESSAGE_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """One member of an answer and its JSON: `value`, or `error` as [cause, message]."""

    kind: str
    json: str

    def text(self, call: int) -> str:
        return f'{{"call": {call}, "{self.kind}": {self.json}}}'


def success(value: Any, most_bytes: int) -> CallOutcome:
    """What a function returned; an error instead where it is not JSON, or longer than that."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
        num_bytes = len(text.encode())
    except UnicodeEncodeError:
        return failure("NotJson", "returned text with a lone surrogate, which is not Unicode; decode bytes as UTF-8")
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        return failure("NotJson", f"returned {_culprit(value)}, which is not JSON: {error}")
    if num_bytes > most_bytes:
        return failure("OutputTooLarge", f"returned {num_bytes} bytes, more than the {most_bytes} that a call may")
    return CallOutcome("value", text)


def failure(cause: str, message: str) -> CallOutcome:
    return CallOutcome("error", json.dumps([cause, message[:MOST_MESSAGE_CHARACTERS]]))


def raised(error: BaseException) -> CallOutcome:
    """An exception of user code; the traceback goes to its standard error."""
    return failure("Raised", error_text(error))


def error_text(error: BaseException) -> str:
    """An exception of user code in a line, with the place that raised it; the traceback goes to standard error."""
    traceback.print_exception(error)
    sys.stderr.flush()
    try:
        text = str(error)
    except Exception:
        text = "an exception without a text"
    frames = traceback.extract_tb(error.__traceback__)
    line = f" at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    return f"{type(error).__name__}: {text[:MOST_MESSAGE_CHARACTERS]}{line}"


def _plain(value: Any) -> Any:
    """Scalars and arrays of numpy as numbers and lists."""
    for name in ("tolist", "item"):
        if hasattr(value, name) and not isinstance(value, memoryview):
            return getattr(value, name)()
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def _culprit(value: Any, place: str = "") -> str:
    """The first part of a value that is not JSON: `bytes at ["page"][0]`."""
    inside = f" at {place}" if place else ""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}{inside}"
    if len(place) < 200:
        items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            if not isinstance(item, str | int | bool | None) and (part := _culprit(item, f"{place}[{key!r}]")):
                return part
    is_json = isinstance(value, str | int | float | dict | list | tuple | None)
    return "" if place and is_json else f"{type(value).__name__}{inside}"
