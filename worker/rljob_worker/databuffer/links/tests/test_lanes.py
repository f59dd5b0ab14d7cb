"""Threads for calls that may hang."""

import threading

from rljob_worker.databuffer.links.lanes import Lane
from rljob_worker.databuffer.protocol.errors import Bug
from rljob_worker.errors import RLJobError
from rljob_worker.tests.waiting import wait_for


def test_calls_hurry_once_half_of_the_threads_are_out_and_no_more_when_they_are_back():
    failed: list[RLJobError] = []
    lane = Lane("calls", 4, failed.append)
    told: list[bool] = []
    go_on = threading.Event()

    def hang(hurried: bool) -> None:
        told.append(hurried)
        go_on.wait()

    for number in range(4):
        lane.submit("a call", hang)
        wait_for(lambda expected=number + 1: len(told) == expected)
    assert told == [False, False, True, True]
    lane.submit("a call", hang)
    go_on.set()

    def is_hurried() -> bool:
        num_told = len(told)
        lane.submit("a call", hang)
        wait_for(lambda: len(told) > num_told)
        return told[-1]

    wait_for(lambda: len(told) == 5)
    wait_for(lambda: not is_hurried())
    assert failed == []
    lane.close()


def test_what_a_call_raises_is_told_and_its_thread_is_free_again():
    failed: list[RLJobError] = []
    lane = Lane("calls", 2, failed.append)
    told: list[bool] = []

    def fail(hurried: bool) -> None:
        raise KeyError("x")

    for _ in range(3):
        lane.submit("a call to host a-0", fail)
    wait_for(lambda: len(failed) == 3)
    assert type(failed[0]) is Bug and str(failed[0]) == "a call to host a-0: KeyError('x')"
    go_on = threading.Event()

    def hang(hurried: bool) -> None:
        told.append(hurried)
        go_on.wait()

    for number in range(2):
        lane.submit("a call", hang)
        wait_for(lambda expected=number + 1: len(told) == expected)
    assert told == [False, True]
    go_on.set()
    lane.close()


def test_what_waits_for_a_thread_when_the_lane_is_closed_is_not_run():
    lane = Lane("lane-that-closes", 1, [].append)
    told: list[bool] = []
    go_on = threading.Event()
    lane.submit("a call", lambda hurried: bool(go_on.wait()) and None)
    lane.submit("a call", told.append)
    lane.close()
    lane.submit("a call", told.append)
    go_on.set()
    wait_for(lambda: not any(thread.name.startswith("lane-that-closes") for thread in threading.enumerate()))
    assert told == []
