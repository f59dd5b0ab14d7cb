"""How many rows decode at once: those whose keys and values have room. Pure.

Room is counted in tokens of the cache, masked ones included: rows x columns.
"""

from __future__ import annotations

_FIRST_COLUMNS = 256
"""Columns reserved for responses at first; the number doubles when they are full."""


def rows_with_room(wanted: int, room: int, columns: int) -> int:
    """How many of the rows decode at once; one always does."""
    return max(1, min(wanted, room // columns))


def first_columns(longest: int, remaining: int) -> int:
    """To begin with, for sequences of up to `longest` tokens that draw up to `remaining` more."""
    return longest + min(remaining, _FIRST_COLUMNS)


def least_columns(length: int, remaining: int) -> int:
    """What the longest row must have, to go on for a quarter of its length or to its end before there is a next time.
    Rows of 1000 tokens with 500 to come: 1250."""
    return length + min(remaining, max(1, length // 4))


def next_columns(columns: int, column: int, remaining: int) -> int:
    """What to reserve where memory is not scarce."""
    return min(2 * columns, column + remaining)
