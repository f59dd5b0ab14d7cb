"""The store: who still reads a segment, and what a waiter is told."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from rljob_worker.databuffer.rows.segment import plan_contents
from rljob_worker.databuffer.store import Item, Reader, Store
from rljob_worker.errors import DeadlineExceeded, PeerLost

ITEM = Item("a->b", 1, "part", 0)
CONTENTS = plan_contents(0, {})
PATIENCE_SECONDS = 30


class WatchedClock:
    """Stands still, and tells when waiters wait.

    Each looks twice, the second time with the lock in hand, which it lets go by waiting.
    """

    def __init__(self) -> None:
        self.forget()

    def __call__(self) -> float:
        self._looks.release()
        return 0.0

    def forget(self) -> None:
        self._looks = threading.Semaphore(0)

    def wait_for(self, num_waiters: int) -> None:
        for _ in range(2 * num_waiters):
            self._looks.acquire()


@contextmanager
def nobody_waits_any_longer(store: Store) -> Iterator[None]:
    """Lets a failed test end."""
    try:
        yield
    finally:
        store.close()
        with store.change():
            pass


def test_a_segment_goes_when_its_last_reader_has_released_it():
    store = Store(1 << 20)
    segment = store.reserve(ITEM, 5000, 0.0)
    store.seal_part(segment, CONTENTS)
    store.set_readers(segment, [Reader("train-0", 0), Reader("train-1", 1)])
    store.release(segment, Reader("train-0", 0))
    store.release(segment, Reader("train-0", 0))  # an acknowledgement that was sent again
    assert store.used_bytes == 8192
    store.release(segment, Reader("train-1", 1))
    assert store.used_bytes == 0 and not store.step("a->b", 1).parts


def test_a_segment_nobody_reads_goes_at_once():
    store = Store(1 << 20)
    store.set_readers(store.reserve(ITEM, 1, 0.0), [])
    assert store.used_bytes == 0


def test_readers_may_release_before_a_later_one_is_added():
    store = Store(1 << 20)
    segment = store.reserve(ITEM, 1, 0.0)
    store.set_readers(segment, [Reader("train-0", 0)])
    store.add_readers(segment, [Reader.rank(0), Reader.rank(1)])
    store.release(segment, Reader("train-0", 0))
    store.release(segment, Reader.rank(0))
    assert store.used_bytes == 4096


def test_reserve_waits_for_space_and_wakes_when_it_comes():
    clock = WatchedClock()
    store = Store(8192, clock)
    first = store.reserve(ITEM, 8192, 0.0)
    store.set_readers(first, [Reader("train-0", 0)])
    with ThreadPoolExecutor(1) as pool:
        clock.forget()
        waiter = pool.submit(store.reserve, Item("a->b", 2, "part", 0), 8192, 3600.0)
        clock.wait_for(1)
        store.release(first, Reader("train-0", 0))
        with nobody_waits_any_longer(store):
            assert waiter.result(PATIENCE_SECONDS).offset == 0


def test_a_full_arena_names_size_and_late_reader():
    store = Store(8192)
    store.set_readers(store.reserve(ITEM, 8192, 0.0), [Reader("train-0", 2)])
    with pytest.raises(DeadlineExceeded) as caught:
        store.reserve(Item("a->b", 2, "part", 0), 4096, 0.01)
    assert "no room for part 0 of edge a->b, step 2: 4,096 bytes needed" in str(caught.value)
    assert "part 0 of edge a->b, step 1, not yet read by host train-0 (share 2)" in str(caught.value)


def test_what_can_never_fit_is_not_waited_for():
    with pytest.raises(DeadlineExceeded, match="16,384 bytes needed"):
        Store(8192).reserve(ITEM, 16384, 3600.0)


def test_closing_wakes_every_waiter():
    clock = WatchedClock()
    store = Store(8192, clock)
    with ThreadPoolExecutor(3) as pool:
        clock.forget()
        waiters = [pool.submit(store.wait, lambda: None, 3600.0) for _ in range(3)]
        clock.wait_for(3)
        store.close()
        with nobody_waits_any_longer(store):
            for waiter in waiters:
                with pytest.raises(PeerLost, match="shutting down"):
                    waiter.result(PATIENCE_SECONDS)


def test_steps_far_behind_are_forgotten_but_for_those_that_still_hold_rows():
    store = Store(1 << 20)
    store.seal_part(store.reserve(ITEM, 1, 0.0), CONTENTS)
    holding, old, recent = (store.step("a->b", step) for step in (ITEM.step, 2, 999))
    store.step("a->b", 1000)
    assert store.step("a->b", ITEM.step) is holding and store.step("a->b", 999) is recent
    assert store.step("a->b", 2) is not old
