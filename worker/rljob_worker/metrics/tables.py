"""Rows to show as columns and cells of a table, and a job as a flat list of fields."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def table_of(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Names of all columns, in the order in which they come up, and a list of cells for each row: None where it has
    nothing of that name, as a row of validation has no advantages."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return columns, [[cell_text(row[name]) if name in row else None for name in columns] for row in rows]


def cell_text(value: Any) -> Any:
    """A cell: numbers and texts as they are, everything else as JSON."""
    return value if isinstance(value, str | int | float) else json.dumps(value)


def flattened(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`algorithm.loss.clipLow`, `0.2` and so on; lists of mappings get numbers."""
    for name, value in config.items():
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            value = {str(index): item for index, item in enumerate(value)}
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(cell_text(value))
