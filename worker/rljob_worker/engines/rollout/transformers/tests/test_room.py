"""Rows and columns by hand."""

from __future__ import annotations

import pytest

from rljob_worker.engines.rollout.transformers.room import (
    first_columns,
    least_columns,
    next_columns,
    rows_with_room,
)


@pytest.mark.parametrize(
    ("wanted", "room", "columns", "rows"),
    [(8, 1000, 100, 8), (8, 799, 100, 7), (8, 50, 100, 1), (0, 1000, 100, 1)],
)
def test_rows_are_as_many_as_have_room_and_at_least_one(wanted: int, room: int, columns: int, rows: int) -> None:
    assert rows_with_room(wanted, room, columns) == rows


def test_columns_are_reserved_by_and_by() -> None:
    assert first_columns(100, 1000) == 356 and first_columns(100, 20) == 120
    # 356 columns that are full: twice as many, or what is to come
    assert next_columns(356, 356, 744) == 712 and next_columns(712, 712, 388) == 1100


def test_rows_go_on_for_a_while_before_they_are_put_back_again() -> None:
    assert least_columns(1000, 500) == 1250
    assert least_columns(1000, 7) == 1007
    assert least_columns(1, 500) == 2
