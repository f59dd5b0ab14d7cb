"""Checkpoint writes in the background."""

import threading

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.checkpoint.background import Background
from rljob_worker.errors import StorageError
from rljob_worker.tests.waiting import wait_for


class Held:
    """Work that goes on until it is let go of."""

    def __init__(self, error=None):
        self.begun, self.go, self.error = threading.Event(), threading.Event(), error

    def __call__(self):
        self.begun.set()
        self.go.wait(TEST_TIMEOUT_SECONDS)
        if self.error is not None:
            raise self.error


def test_work_goes_on_beside_and_the_next_waits_for_it():
    background, first, second = Background("test"), Held(), Held()
    background.start(first)
    assert first.begun.wait(TEST_TIMEOUT_SECONDS)
    background.check()  # waits for nothing
    beginning = threading.Thread(target=background.start, args=(second,))
    beginning.start()
    background.leave(0.01)  # does not wait for ever
    assert not second.begun.is_set()
    first.go.set()
    assert second.begun.wait(TEST_TIMEOUT_SECONDS)
    second.go.set()
    beginning.join()
    background.wait()


def test_what_it_broke_by_is_raised_by_whoever_asks_next():
    background, broken = Background("test"), Held(StorageError("disk full"))
    background.check()
    background.wait()
    background.start(broken)
    assert background.error is None
    broken.go.set()
    wait_for(lambda: background.error)
    for ask in (background.check, background.wait, lambda: background.start(Held())):
        with pytest.raises(StorageError, match="disk full"):
            ask()


def test_a_failure_beside_it_leaves_it_some_time():
    background, work = Background("test"), Held()
    waiting = []
    threading.Thread(target=lambda: wait_for(lambda: waiting) and work.go.set()).start()
    with pytest.raises(ZeroDivisionError), background.finished_within(30):
        background.start(work)
        waiting.append(True)
        raise ZeroDivisionError
    assert background.take_seconds() != []


def test_seconds_are_reported_once_for_what_ended_well():
    background = Background("test", clock=iter([1.0, 3.5, 10.0, 11.0]).__next__)
    for _ in range(2):
        background.start(lambda: None)
        background.wait()
    assert background.take_seconds() == [2.5, 1.0]
    assert background.take_seconds() == []
