"""The one lock: waits that end by a change, by their time, or by the first cause of the end."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.databuffer.protocol.errors import Bug
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.work import Threads
from rljob_worker.errors import BadData, PeerLost, StorageError


class WatchedClock:
    """Stands still, and tells how often somebody has looked: a wait looks at its begin and before it sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = threading.Semaphore(0)

    def __call__(self) -> float:
        self.looks.release()
        return self.now

    def wait_for(self, num_waiters: int) -> None:
        for _ in range(2 * num_waiters):
            assert self.looks.acquire(timeout=TEST_TIMEOUT_SECONDS)


def test_what_is_there_is_given_at_once_and_what_is_not_after_no_time_at_all():
    monitor = Monitor(Threads(lambda: 5.0))
    assert monitor.wait(lambda: 7, 0.0) == 7
    assert monitor.wait(lambda: None, 0.0) is None
    assert monitor.wait(lambda: 0, 3600.0) == 0 and monitor.wait(lambda: False, 3600.0) is False


def test_a_change_wakes_everybody_who_waits():
    clock, there = WatchedClock(), list[int]()
    monitor = Monitor(Threads(clock))
    with ThreadPoolExecutor(3) as pool:
        # less than a second, by a clock that stands still
        waits = [pool.submit(monitor.wait, lambda: there or None, 0.5) for _ in range(3)]
        clock.wait_for(3)
        with monitor.change():
            there.append(1)
        assert [item.result(TEST_TIMEOUT_SECONDS / 2) for item in waits] == [[1]] * 3


def test_a_wait_ends_by_its_time_however_often_something_changes():
    monitor, over = Monitor(), threading.Event()

    def changes() -> None:
        while not over.is_set():
            with monitor.change():
                pass

    with ThreadPoolExecutor(2) as pool:
        changing = pool.submit(changes)
        assert pool.submit(monitor.wait, lambda: None, 0.05).result(TEST_TIMEOUT_SECONDS) is None
        over.set()
        changing.result()


def test_only_who_can_go_on_is_woken_and_what_its_question_raises_is_its_own():
    clock, there = WatchedClock(), list[str]()
    monitor = Monitor(Threads(clock))

    def ready(name: str) -> str | None:
        if name == "odd" and there:
            raise BadData("odd")
        return name if name in there else None

    with ThreadPoolExecutor(3) as pool:
        waits = {name: pool.submit(monitor.wait, partial(ready, name), TEST_TIMEOUT_SECONDS) for name in ("one", "odd")}
        clock.wait_for(2)
        with monitor.change(), monitor.change():
            there.append("one")
        assert waits["one"].result(TEST_TIMEOUT_SECONDS / 2) == "one"
        with pytest.raises(BadData, match="odd"):
            waits["odd"].result(TEST_TIMEOUT_SECONDS / 2)


def test_between_two_states_nobody_is_asked():
    clock, state, seen = WatchedClock(), [0], list[int]()
    monitor = Monitor(Threads(clock))

    def ready() -> int | None:
        seen.append(state[0])
        return 1 if state[0] == 2 else None

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(monitor.wait, ready, TEST_TIMEOUT_SECONDS)
        clock.wait_for(1)
        with monitor.change():
            with monitor.change():
                state[0] = 1
            state[0] = 2
        assert waiting.result(TEST_TIMEOUT_SECONDS / 2) == 1
    assert seen == [0, 2]


def test_a_change_that_fails_leaves_the_lock_as_it_was():
    clock, there = WatchedClock(), list[int]()
    monitor = Monitor(Threads(clock))
    with pytest.raises(ValueError), monitor.change():
        raise ValueError
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(monitor.wait, lambda: there or None, TEST_TIMEOUT_SECONDS)
        clock.wait_for(1)
        with monitor.change():
            there.append(1)
        assert waiting.result(TEST_TIMEOUT_SECONDS / 2) == [1]


def test_the_first_cause_ends_all_waits_and_is_kept():
    clock = WatchedClock()
    monitor = Monitor(Threads(clock))
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(monitor.wait, lambda: None, TEST_TIMEOUT_SECONDS) for _ in range(2)]
        clock.wait_for(2)
        assert monitor.break_down(BadData("row 3"))
        assert monitor.break_down(Bug("follows from it")) is False
        for item in waits:
            with pytest.raises(BadData, match="^row 3$"):
                item.result(TEST_TIMEOUT_SECONDS / 2)
    with pytest.raises(BadData, match="^row 3$"):
        monitor.check()


def test_what_is_there_is_given_also_when_the_data_plane_is_broken():
    monitor = Monitor()
    monitor.break_down(StorageError("the disk"))
    assert monitor.wait(lambda: 1, 0.0) == 1
    with pytest.raises(StorageError, match="the disk"):
        monitor.wait(lambda: None, 0.0)


def test_every_waiter_gets_an_error_of_its_own():
    monitor = Monitor()
    monitor.check()
    cause = PeerLost("host a-0")
    monitor.break_down(cause)
    raised = list[PeerLost]()
    for _ in range(2):
        with pytest.raises(PeerLost, match="host a-0") as caught:
            monitor.check()
        raised.append(caught.value)
    assert len({id(error) for error in (*raised, cause)}) == 3


def test_the_lock_may_be_taken_again_and_keeps_others_out():
    monitor, order = Monitor(), list[str]()

    def other() -> None:
        with monitor.look():
            order.append("other")

    for hold in (monitor.look, monitor.change):
        with hold(), monitor.change(), monitor.look():
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(0.05)
            order.append("first")
        thread.join()
    assert order == ["first", "other"] * 2
