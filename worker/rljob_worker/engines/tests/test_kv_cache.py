"""Rows in the cache: who fills whose place."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.engines.kv_cache import Survivors


def test_the_last_rows_fill_the_gaps() -> None:
    survivors = Survivors.of(np.array([False, True, False, True, False]))
    assert survivors.num_rows == 3
    assert survivors.holes.tolist() == [1]
    assert survivors.movers.tolist() == [4]
    assert survivors.order().tolist() == [0, 4, 2]


@given(st.lists(st.booleans(), max_size=20))
def test_every_unfinished_row_goes_on_once(finished: list[bool]) -> None:
    order = Survivors.of(np.array(finished, bool)).order()
    assert sorted(order.tolist()) == [row for row, done in enumerate(finished) if not done]
