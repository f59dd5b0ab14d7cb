"""One batch ahead, and its errors where it is needed."""

import threading

import numpy as np
import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.data.read_ahead import ReadAhead
from rljob_worker.tests.waiting import wait_for


class Reader:
    """Waits at `gate`; fails for batches that hold a number below 0."""

    def __init__(self):
        self.gate = threading.Event()
        self.read = []

    def __call__(self, ordinals):
        assert self.gate.wait(TEST_TIMEOUT_SECONDS)
        self.read.append((ordinals.tolist(), threading.current_thread() is threading.main_thread()))
        if (ordinals < 0).any():
            raise ValueError(f"cannot read {ordinals.tolist()}")
        return ordinals.tolist()


def test_a_batch_is_read_while_nobody_waits_for_it_and_once():
    reader = Reader()
    ahead = ReadAhead(reader)
    ahead.begin(np.array([3, 4]))
    assert reader.read == []
    reader.gate.set()
    assert ahead.take(np.array([3, 4])) == [3, 4]
    assert reader.read == [([3, 4], False)]


def test_another_batch_is_read_when_it_is_asked_for():
    reader = Reader()
    reader.gate.set()
    ahead = ReadAhead(reader)
    assert ahead.take(np.array([1])) == [1]
    ahead.begin(np.array([3, 4]))
    assert ahead.take(np.array([4, 5])) == [4, 5]
    wait_for(lambda: len(reader.read) == 3)
    assert ahead.take(np.array([3, 4])) == [3, 4]
    assert sorted(reader.read) == [([1], True), ([3, 4], False), ([4, 5], True)]


def test_what_goes_wrong_is_raised_by_the_step_that_needs_the_batch_and_by_no_other():
    reader = Reader()
    reader.gate.set()
    ahead = ReadAhead(reader)
    ahead.begin(np.array([-1]))
    assert ahead.take(np.array([1])) == [1]
    with pytest.raises(ValueError, match="cannot read"):
        ahead.take(np.array([-1]))
    assert ([-1], False) in reader.read


def test_there_is_never_more_than_one_batch_ahead():
    reader = Reader()
    ahead = ReadAhead(reader)
    ahead.begin(np.array([1]))
    ahead.begin(np.array([2]))  # the first is still being read: this one is read when it is asked for
    reader.gate.set()
    assert ahead.take(np.array([1])) == [1]
    assert ahead.take(np.array([2])) == [2]
    assert reader.read == [([1], False), ([2], True)]
