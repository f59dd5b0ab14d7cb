"""The reward of both systems: cheap, and about as often 1 as 0 at every length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def parity(row: Mapping[str, Any]) -> float:
    """1.0 for an odd number of response tokens."""
    return float(row["num_response_tokens"] % 2)
