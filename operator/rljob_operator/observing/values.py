"""Reads JSON, and its values one by one.

Whoever wrote them may have meant harm or made a mistake: what comes out has its type and its bounds, and nothing is
raised but `Unreadable`, by `parsed`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from rljob_operator.vocabulary.timestamps import seconds_of

MAX_INT64 = 2**63 - 1
"""The API has no larger number."""
MAX_INT32 = 2**31 - 1
"""Largest value of a container's exit code, and of how often it was started again."""
MAX_WORD_LENGTH = 256
"""Characters of a reason or a name, at most."""
MAX_MESSAGE_LENGTH = 4096
"""Characters of a condition's message and of a termination message, at most."""
_MAX_ITEMS = 256
"""Items that are read of a list in a pod's status, at most."""

_CONTROLS = {code: "\ufffd" for code in (*range(32), 127, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}

_PAIR = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf"\\(?:{_PAIR}|(u[dD][89a-fA-F][0-9a-fA-F]{{2}})|.)")
"""An escape of JSON; the group is half of a surrogate pair, which no UTF-8 can say."""


class Unreadable(ValueError):
    """Text that is not JSON, or nested more than 200 deep."""


def parse_json(text: bytes | str) -> Any:
    """The JSON in `text`; half a surrogate pair is spelt out, as `clean` does it.  Raises Unreadable."""
    encoded = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
    known = encoded.decode("utf-8", "replace")
    try:
        return from_json(_ESCAPE.sub(lambda result: f"\\\\{result[1]}" if result[1] else result[0], known))
    except ValueError as error:
        raise Unreadable(clean(str(error), MAX_WORD_LENGTH)) from None


def mapping(value: Any) -> Mapping[str, Any]:
    """Empty where it is none."""
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """The mappings of a list, at most n of them."""
    return [item for item in value[:_MAX_ITEMS] if isinstance(item, dict)] if isinstance(value, list | tuple) else []


def text_value(value: Any, max_length: int = MAX_WORD_LENGTH) -> str:
    """Text; empty where it is none."""
    return clean(value, max_length) if isinstance(value, str) else ""


def whole_number(value: Any, least: int = 0, most: int = MAX_INT64) -> int | None:
    """A whole number from `least` to `most`, the nearest of them; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    return min(max(int(value), least), most)


def finite_number(value: Any) -> float | None:
    """A finite number; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def moment(value: Any) -> float | None:
    """Seconds since 1970 of a time as the API writes it; None where it is none."""
    try:
        return seconds_of(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def clean(text: str, max_length: int) -> str:
    """`text` as valid UTF-8 without control characters, at most `max_length` characters of it; what cannot be UTF-8
    is spelt out, as in `\\ud83d`."""
    valid = text[:max_length].encode("utf-8", "backslashreplace").decode().translate(_CONTROLS)
    is_whole = len(text) <= max_length and len(valid) <= max_length
    return valid if is_whole else valid[: max_length - 2] + " …"
