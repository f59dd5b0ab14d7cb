"""Tests of the order of test files over processes."""

from pathlib import Path

import pytest

from testing.order import LONG, long_first

CHECKOUT = Path(__file__).parents[2]
SHORT = [("short.py", number) for number in range(44)]
TESTS = [*SHORT[:9], *((file, number) for file in reversed(LONG) for number in range(2)), *SHORT[9:]]


def file_of(test: tuple[str, int]) -> str:
    return test[0]


def test_the_long_files_are_there() -> None:
    assert [file for file in LONG if not (CHECKOUT / file).is_file()] == []


@pytest.mark.parametrize("num_processes", [1, 2, 3, 8])
def test_every_process_begins_with_long_files_and_no_test_is_lost(num_processes: int) -> None:
    ordered = long_first(TESTS, file_of, num_processes)
    assert sorted(ordered) == sorted(TESTS)
    assert [test for test in ordered if test in SHORT] == SHORT
    begins = [part * len(TESTS) // num_processes for part in range(num_processes)]
    assert [ordered[begin] for begin in begins] == [(file, 0) for file in LONG[:num_processes]]


def test_tests_of_a_file_stay_together_and_longer_files_come_first() -> None:
    files, half = [file_of(test) for test in long_first(TESTS, file_of, 2)], len(TESTS) // 2
    first, second = files[:half], files[half:]
    assert first == [file for file in LONG[::2] for _ in range(2)] + ["short.py"] * (half - len(LONG))
    assert second == [file for file in LONG[1::2] for _ in range(2)] + ["short.py"] * (half - len(LONG))


def test_files_of_a_kind_follow_the_long_ones_of_the_first_process() -> None:
    tests = [*TESTS[:25], ("ranks.py", 0), *TESTS[25:], ("more_ranks.py", 0), ("ranks.py", 1)]
    ordered = long_first(tests, file_of, 2, {"ranks.py", "more_ranks.py", LONG[1]})
    assert sorted(ordered) == sorted(tests)
    begin = len([test for test in ordered if file_of(test) in LONG[::2]])
    assert ordered[begin : begin + 3] == [("ranks.py", 0), ("more_ranks.py", 0), ("ranks.py", 1)]
    assert [test for test in ordered if test in SHORT] == SHORT


def test_long_files_alone_are_all_kept() -> None:
    tests = [(LONG[0], number) for number in range(5)]
    assert long_first(tests, file_of, 3) == tests
