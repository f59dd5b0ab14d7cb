"""Virtual time of a few rows."""

import numpy as np
import pytest

from long_tail.schedules import correlation
from long_tail.slots import ROW_COST, Slots


def decode(slots: Slots, new_tokens: list[int], held_tokens: list[int]) -> list[list[int]]:
    return [ended.tolist() for ended in slots.decode(np.array(new_tokens), np.array(held_tokens))]


def test_rows_take_slots_in_order_and_leave_them_when_they_end() -> None:
    slots = Slots(num_slots=2)
    # rows 0 and 1 for 2 steps, 0 and 2 for 3 steps, 0 alone for 1
    assert decode(slots, [6, 2, 3], [0, 0, 0]) == [[1], [2], [0]]
    assert slots.tokens == 11
    assert slots.time == pytest.approx(6 + 11 * ROW_COST)
    alone = 1 + ROW_COST
    assert slots.idle_share == pytest.approx(alone / (2 * slots.time))


def test_tokens_that_a_row_brings_cost_time_when_it_gets_its_slot() -> None:
    slots, costly = Slots(num_slots=1), Slots(num_slots=1, prefill_cost=0.5)
    for item in (slots, costly):
        decode(item, [1, 1], [4, 6])
    assert costly.time == pytest.approx(slots.time + 0.5 * (4 + 6))
    assert costly.since(slots).time == pytest.approx(5.0)


def test_what_happens_to_all_correlates_with_nothing() -> None:
    values = np.array([1.0, 2.0, 3.0])
    assert correlation(values, np.array([True, True, True])) == 0
    # of 1 2 3 with 1 1 0: covariance -1/3, deviations sqrt(2/3) and sqrt(2/9)
    assert correlation(values, np.array([True, True, False])) == pytest.approx(-(3**0.5) / 2)
