"""Waits under one lock: each goes on when what it waits for is there, and no change wakes it before."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.work import Threads
from rljob_worker.errors import BadData, PeerLost
from rljob_worker.tests.waiting import wait_for


class Box:
    """A state, and how often somebody looked at it."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.looks: list[threading.Thread] = []

    def take(self) -> int | None:
        self.looks.append(threading.current_thread())
        return self.values.pop(0) if self.values else None


def waiting(pool: ThreadPoolExecutor, monitor: Monitor, box: Box) -> Future[int | None]:
    """A wait that has begun: it has looked once, and found nothing."""
    before = len(box.looks)
    future = pool.submit(monitor.wait, box.take, TEST_TIMEOUT_SECONDS)
    wait_for(lambda: len(box.looks) > before)
    with monitor.look():  # it holds the lock from its look until it waits
        return future


def test_what_is_there_is_given_at_once():
    monitor, box = Monitor(), Box()
    box.values = [7]
    assert monitor.wait(box.take, 0.0) == 7
    assert monitor.wait(box.take, 0.0) is None


def test_a_change_wakes_who_can_go_on_in_the_order_in_which_they_came():
    monitor, box = Monitor(), Box()
    with ThreadPoolExecutor(2) as pool:
        first, second = waiting(pool, monitor, box), waiting(pool, monitor, box)
        with monitor.change():
            box.values = [1]
        assert first.result(TEST_TIMEOUT_SECONDS) == 1
        assert not second.done()
        with monitor.change():
            box.values = [2]
        assert second.result(TEST_TIMEOUT_SECONDS) == 2


def test_whoever_changes_something_looks_for_those_who_wait():
    monitor, box = Monitor(), Box()
    with ThreadPoolExecutor(1) as pool:
        future = waiting(pool, monitor, box)
        for _ in range(3):
            with monitor.change():
                pass
        with monitor.look():
            box.values = [5]
        # its own look, and three of ours: it was not woken for nothing; to look changes nothing
        assert box.looks[1:] == [threading.current_thread()] * 3 and not future.done()
        with monitor.change():
            pass
        assert future.result(TEST_TIMEOUT_SECONDS) == 5


def test_nobody_sees_a_state_in_the_middle_of_a_change():
    monitor, box = Monitor(), Box()
    with ThreadPoolExecutor(1) as pool:
        future = waiting(pool, monitor, box)
        with monitor.change():
            with monitor.change():
                box.values = [1]
            box.values = [2]
        assert future.result(TEST_TIMEOUT_SECONDS) == 2


def test_a_change_that_fails_wakes_nobody_and_the_next_one_does():
    monitor, box = Monitor(), Box()
    with ThreadPoolExecutor(1) as pool:
        future = waiting(pool, monitor, box)
        with pytest.raises(BadData), monitor.change():
            box.values = [1]
            raise BadData("no")
        assert len(box.looks) == 1
        with monitor.change():
            pass
        assert future.result(TEST_TIMEOUT_SECONDS) == 1


def test_an_error_of_a_wait_is_raised_there_and_not_where_something_changed():
    monitor, looks, wrong = Monitor(), list[int](), list[str]()

    def ready() -> int | None:
        looks.append(1)
        if wrong:
            raise BadData(wrong[0])
        return None

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(monitor.wait, ready, TEST_TIMEOUT_SECONDS)
        wait_for(lambda: looks)
        with monitor.change():
            wrong.append("a part put twice")
        with pytest.raises(BadData, match="a part put twice"):
            future.result(TEST_TIMEOUT_SECONDS)


def test_the_first_cause_is_raised_by_every_wait_and_what_is_there_is_given():
    monitor, box = Monitor(), Box()
    with ThreadPoolExecutor(2) as pool:
        both = [waiting(pool, monitor, box), waiting(pool, monitor, box)]
        assert monitor.break_down(PeerLost("host a-0 is gone"))
        assert not monitor.break_down(PeerLost("host a-1 is gone"))
        for future in both:
            with pytest.raises(PeerLost, match="host a-0 is gone"):
                future.result(TEST_TIMEOUT_SECONDS)
    with pytest.raises(PeerLost, match="host a-0"):
        monitor.wait(box.take, TEST_TIMEOUT_SECONDS)
    box.values = [3]
    assert monitor.wait(box.take, TEST_TIMEOUT_SECONDS) == 3


def test_a_wait_that_is_over_is_not_looked_for_any_more():
    now = [0.0]
    monitor, box = Monitor(Threads(lambda: now[0])), Box()
    assert monitor.wait(box.take, 0.0) is None
    box.looks.clear()
    with monitor.change():
        pass
    assert not box.looks
