"""What is not started for want of memory."""

import pytest

from planes.room import GIB, available, needed, refusal
from planes.rows import SHAPES, RowCase
from planes.systems import ONE_POD, TWO_PODS

LARGE = RowCase(2048, True, 1, 1)
RAGGED = RowCase(2048, False, 1, 1)
NAMES = ("rljob", "Ray", "TransferQueue", "siiRL", "verl", "memcpy", "shared memory", "TCP", "Flight stream")


def test_a_system_that_would_be_killed_is_not_started_and_says_what_it_needs():
    # 2,147.5 MB × 4.6 + 1 GiB = 10.2 GiB
    assert refusal("rljob", LARGE, TWO_PODS, 11 * GIB) is None
    assert refusal("rljob", LARGE, TWO_PODS, 10 * GIB) == "rljob: not measured: needs 10 GiB, 10 are free"
    # 2,147.5 MB × 11 + 1 GiB = 23.0 GiB
    assert refusal("Ray", LARGE, TWO_PODS, 20 * GIB) == "Ray: not measured: needs 23 GiB, 20 are free"
    assert refusal("Ray", LARGE, ONE_POD, 20 * GIB) is None


def test_ragged_rows_that_are_padded_need_half_as_much_again():
    assert needed("verl", RAGGED, ONE_POD) - GIB == int(12 * 1.5 * RAGGED.num_bytes)
    assert needed("siiRL", RAGGED, ONE_POD) - GIB == int(6.5 * RAGGED.num_bytes)


@pytest.mark.parametrize("name", NAMES)
def test_small_cases_have_room_everywhere(name: str):
    for size in sorted(SHAPES)[:3]:
        assert refusal(name, RowCase(size, True, 1, 1), TWO_PODS, 8 * GIB) is None


def test_what_is_available_is_read_in_bytes():
    assert available("MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable:   64 kB\n") == 65_536
    assert available() > 0
