"""Rows to show, as the columns and cells of a tracker's table."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of all of them, in the order in which they come up."""
    return list(dict.fromkeys(name for row in rows for name in row))


def text_of(value: Any) -> Any:
    """A cell: numbers and texts as they are, everything else as JSON."""
    return value if isinstance(value, str | int | float) else json.dumps(value)
