"""Rows to show as columns and cells of a table, and a job as a flat list of fields."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of all of them, in the order in which they come up."""
    return list(dict.fromkeys(name for row in rows for name in row))


def text_of(value: Any) -> Any:
    """A cell: numbers and texts as they are, everything else as JSON."""
    return value if isinstance(value, str | int | float) else json.dumps(value)


def flattened(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`algorithm.loss.clipLow`, `0.2` and so on; lists of mappings get numbers."""
    for name, value in config.items():
        if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
            value = {str(index): each for index, each in enumerate(value)}
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(text_of(value))
