"""Background work: nothing that is raised is lost, and no thread dies of it."""

import threading

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.databuffer.protocol.errors import Bug
from rljob_worker.databuffer.work import CallThreadPool, Threads, Timer, Work
from rljob_worker.errors import BadData, RLJobError
from rljob_worker.tests.waiting import wait_for


class Fails(list[RLJobError]):
    def __call__(self, error: RLJobError) -> None:
        self.append(error)


def raising(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "error, kind, words",
    [
        (BadData("row 3"), BadData, "row 3"),
        (AssertionError("odd"), Bug, "offers of edge a->b: AssertionError('odd')"),
        (MemoryError(), Bug, "offers of edge a->b: MemoryError()"),
        (SystemExit(3), Bug, "offers of edge a->b: SystemExit(3)"),
    ],
)
def test_what_a_job_raises_is_told_and_the_next_job_runs(error: BaseException, kind: type[RLJobError], words: str):
    fails, done = Fails(), threading.Event()
    work = Work("work", 1, fails)
    work.submit("offers of edge a->b", lambda: raising(error))
    work.submit("more", done.set)
    assert done.wait(TEST_TIMEOUT_SECONDS)
    assert [(type(fail), str(fail)) for fail in fails] == [(kind, words)]
    work.close()


def test_jobs_run_at_the_same_time_and_no_more_than_there_are_threads():
    fails, go = Fails(), threading.Event()
    running = threading.Semaphore(0)
    work = Work("work", 3, fails)
    for _ in range(5):
        work.submit("it", lambda: (running.release(), go.wait(TEST_TIMEOUT_SECONDS)))
    assert all(running.acquire(timeout=TEST_TIMEOUT_SECONDS) for _ in range(3))
    assert not running.acquire(timeout=0.05)
    go.set()
    assert all(running.acquire(timeout=TEST_TIMEOUT_SECONDS) for _ in range(2))
    work.close()
    assert not fails


def test_nothing_is_run_after_the_end_and_what_waits_is_forgotten():
    fails, go, ran = Fails(), threading.Event(), list[int]()
    started = threading.Event()
    work = Work("work", 1, fails)
    work.submit("first", lambda: (started.set(), go.wait(TEST_TIMEOUT_SECONDS)))
    work.submit("second", lambda: ran.append(2))
    assert started.wait(TEST_TIMEOUT_SECONDS)
    work.close()
    work.submit("third", lambda: ran.append(3))
    go.set()
    wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("work_")])
    assert ran == [] and not fails


def test_work_goes_on_where_the_system_gives_no_more_threads(monkeypatch: pytest.MonkeyPatch):
    fails, done = Fails(), threading.Semaphore(0)
    work = Work("work", 4, fails)
    go = threading.Event()
    work.submit("holds the first thread", lambda: go.wait(TEST_TIMEOUT_SECONDS))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: raising(RuntimeError("can't start new thread")))
        for _ in range(3):
            work.submit("it", done.release)
    go.set()
    assert all(done.acquire(timeout=TEST_TIMEOUT_SECONDS) for _ in range(3)) and not fails
    work.close()


# ---- later


def test_calls_come_in_the_order_of_their_times_and_equal_ones_as_they_were_said():
    now, came, done = [0.0], list[str](), threading.Event()
    timer = Timer(Fails(), Threads(lambda: now[0]))
    timer.after(3.0, done.set)
    timer.after(2.0, lambda: came.append("two"))
    timer.after(1.0, lambda: came.append("one"))
    timer.after(2.0, lambda: came.append("three"))
    assert came == []
    now[0] = 2.0
    timer.after(0.0, lambda: None)
    wait_for(lambda: came == ["one", "two", "three"])
    assert not done.is_set()
    now[0] = 3.0
    timer.after(0.0, lambda: None)
    assert done.wait(TEST_TIMEOUT_SECONDS)
    timer.close()


def test_a_call_that_fails_is_told_and_the_next_one_comes():
    fails, done = Fails(), threading.Event()
    timer = Timer(fails)
    timer.after(0.0, lambda: raising(ValueError("odd")))
    timer.after(0.0, lambda: raising(BadData("row 3")))
    timer.after(0.02, done.set)
    assert done.wait(TEST_TIMEOUT_SECONDS)
    assert [str(fail) for fail in fails] == ["what was due later: ValueError('odd')", "row 3"]
    timer.close()


def test_a_timer_ends_with_calls_still_due():
    before = threading.active_count()
    timer = Timer(Fails())
    timer.after(3600.0, lambda: None)
    timer.close()
    wait_for(lambda: threading.active_count() <= before)


def test_small_jobs_are_done_at_once_and_what_they_raise_is_told():
    fails, done = Fails(), list[str]()
    work = Work("work", 1, fails)
    work.do("small", lambda: done.append(threading.current_thread().name), is_small=True)
    assert done == [threading.current_thread().name]
    work.do("offers", lambda: raising(KeyError("score")), is_small=True)
    assert [str(fail) for fail in fails] == ["offers: KeyError('score')"]
    work.do("large", lambda: done.append(threading.current_thread().name), is_small=False)
    wait_for(lambda: len(done) == 2)
    assert done[1].startswith("work")
    work.close()


def test_calls_hurry_once_half_of_the_threads_are_out_and_no_more_when_they_are_back():
    failed: list[RLJobError] = []
    lane = CallThreadPool("calls", 4, failed.append)
    reported: list[bool] = []
    go_on = threading.Event()

    def hang(hurried: bool) -> None:
        reported.append(hurried)
        go_on.wait()

    for number in range(4):
        lane.submit("a call", hang)
        wait_for(lambda expected=number + 1: len(reported) == expected)
    assert reported == [False, False, True, True]
    lane.submit("a call", hang)
    go_on.set()

    def is_hurried() -> bool:
        num_told = len(reported)
        lane.submit("a call", hang)
        wait_for(lambda: len(reported) > num_told)
        return reported[-1]

    wait_for(lambda: len(reported) == 5)
    wait_for(lambda: not is_hurried())
    assert failed == []
    lane.close()


def test_what_a_call_raises_is_told_and_its_thread_is_free_again():
    failed: list[RLJobError] = []
    lane = CallThreadPool("calls", 2, failed.append)
    reported: list[bool] = []

    def fail(hurried: bool) -> None:
        raise KeyError("x")

    for _ in range(3):
        lane.submit("a call to host a-0", fail)
    wait_for(lambda: len(failed) == 3)
    assert type(failed[0]) is Bug and str(failed[0]) == "a call to host a-0: KeyError('x')"
    go_on = threading.Event()

    def hang(hurried: bool) -> None:
        reported.append(hurried)
        go_on.wait()

    for number in range(2):
        lane.submit("a call", hang)
        wait_for(lambda expected=number + 1: len(reported) == expected)
    assert reported == [False, True]
    go_on.set()
    lane.close()


def test_what_waits_for_a_thread_when_the_lane_is_closed_is_not_run():
    lane = CallThreadPool("lane-that-closes", 1, [].append)
    reported: list[bool] = []
    go_on = threading.Event()
    lane.submit("a call", lambda hurried: bool(go_on.wait()) and None)
    lane.submit("a call", reported.append)
    lane.close()
    lane.submit("a call", reported.append)
    go_on.set()
    wait_for(lambda: not any(thread.name.startswith("lane-that-closes") for thread in threading.enumerate()))
    assert reported == []
