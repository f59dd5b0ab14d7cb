"""Bodies of requests as JSON: what a parser takes and nothing later could."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from rljob_worker.endpoint.calls import RequestRefused

MOST_DEPTH = 64
"""Objects and lists inside each other."""


def json_object(body: bytes) -> dict[str, Any]:
    """The object that a body is. Raises RequestRefused for what is not UTF-8, not JSON, not an object, nested more
    deeply than MOST_DEPTH, or text that is not Unicode."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise RequestRefused(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise RequestRefused(_TOO_DEEP) from None
    except ValueError as error:
        raise RequestRefused(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestRefused(f"the body is a JSON {type(value).__name__}, not an object")
    _check(value)
    return value


_TOO_DEEP = f"the body has more than {MOST_DEPTH} objects and lists inside each other"


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check(value: dict[str, Any]) -> None:
    """Level by level, so that no stack is needed."""
    level: list[Any] = [value]
    for _ in range(MOST_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                for key, inside in item.items():
                    _check_text(key)
                    below.append(inside)
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str):
                _check_text(item)
        if not below:
            return
        level = below
    if any(isinstance(item, dict | list) and item for item in level):
        raise RequestRefused(_TOO_DEEP)


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestRefused(f"a text has a lone surrogate, {text[error.start]!r}, which is not Unicode") from None
