"""The one lock: waits that end by a change, by their time, or by the first cause of the end."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rljob_worker.databuffer.protocol.errors import Bug
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.errors import BadData, PeerLost, StorageError

PATIENCE_SECONDS = 30.0


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
            assert self.looks.acquire(timeout=PATIENCE_SECONDS)


def test_what_is_there_is_given_at_once_and_what_is_not_after_no_time_at_all():
    monitor = Monitor(lambda: 5.0)
    assert monitor.wait(lambda: 7, 0.0) == 7
    assert monitor.wait(lambda: None, 0.0) is None
    assert monitor.wait(lambda: 0, 3600.0) == 0 and monitor.wait(lambda: False, 3600.0) is False


def test_a_change_wakes_everybody_who_waits():
    clock, there = WatchedClock(), list[int]()
    monitor = Monitor(clock)
    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(monitor.wait, lambda: there or None, PATIENCE_SECONDS) for _ in range(3)]
        clock.wait_for(3)
        with monitor.change():
            there.append(1)
        assert [each.result(PATIENCE_SECONDS / 2) for each in waits] == [[1]] * 3


def test_a_wait_ends_by_its_time_however_often_it_is_woken():
    clock = WatchedClock()
    clock.now = 100.0
    monitor = Monitor(clock)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(monitor.wait, lambda: None, 10.0)
        clock.wait_for(1)
        clock.now = 109.0
        with monitor.change():
            pass
        assert clock.looks.acquire(timeout=PATIENCE_SECONDS)
        clock.now = 110.0
        with monitor.change():
            pass
        assert waiting.result(PATIENCE_SECONDS) is None


def test_the_first_cause_ends_all_waits_and_is_kept():
    clock = WatchedClock()
    monitor = Monitor(clock)
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(monitor.wait, lambda: None, PATIENCE_SECONDS) for _ in range(2)]
        clock.wait_for(2)
        assert monitor.break_down(BadData("row 3"))
        assert not monitor.break_down(Bug("follows from it"))
        for each in waits:
            with pytest.raises(BadData, match="^row 3$"):
                each.result(PATIENCE_SECONDS / 2)
    monitor.close()
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


def test_the_end_of_a_data_buffer_is_a_cause():
    monitor = Monitor()
    monitor.close()
    with pytest.raises(PeerLost, match="this data buffer is shutting down"):
        monitor.wait(lambda: None, PATIENCE_SECONDS)


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
