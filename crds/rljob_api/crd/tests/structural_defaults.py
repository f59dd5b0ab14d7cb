"""What an API server does with an object before it stores it: fill in defaults, leave out nulls."""

from __future__ import annotations

import copy
from typing import Any

Schema = dict[str, Any]


def fill_defaults(value: Any, schema: Schema) -> Any:
    """The value with the defaults of its schema, nested ones included; nulls count as absent."""
    if isinstance(value, list) and "items" in schema:
        return [fill_defaults(item, schema["items"]) for item in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    filled = {key: item for key, item in value.items() if item is not None}
    for name, below in schema["properties"].items():
        if name not in filled and "default" in below:
            filled[name] = copy.deepcopy(below["default"])
        if name in filled:
            filled[name] = fill_defaults(filled[name], below)
    return filled
