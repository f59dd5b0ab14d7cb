"""What an API server does with an object before it stores it: fill in defaults, leave out nulls."""

from __future__ import annotations

import copy
from typing import Any

Schema = dict[str, Any]


def fill_defaults(value: Any, schema: Schema) -> Any:
    """The value with the defaults of its schema, nested ones included; nulls count as absent."""
    if isinstance(value, list) and "items" in schema:
        return [fill_defaults(each, schema["items"]) for each in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    filled = {key: each for key, each in value.items() if each is not None}
    for name, below in schema["properties"].items():
        if name not in filled and "default" in below:
            filled[name] = copy.deepcopy(below["default"])
        if name in filled:
            filled[name] = fill_defaults(filled[name], below)
    return filled
