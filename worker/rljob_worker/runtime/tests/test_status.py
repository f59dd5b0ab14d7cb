"""Status reports to the sidecar, and stop requests to the worker."""

import os
import signal
import threading

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.errors import PeerLost
from rljob_worker.runtime.status import StatusPoster, StopSignal
from rljob_worker.tests.waiting import wait_for


def test_the_latest_status_is_posted_and_older_ones_may_be_left_out():
    posted, first = [], threading.Event()

    def post(status):
        posted.append(status["stage"])
        first.set()

    poster = StatusPoster(post, interval_seconds=60)
    poster({"stage": "rollout"})
    assert first.wait(TEST_TIMEOUT_SECONDS)
    poster({"stage": "reward"})
    poster({"stage": "update"})
    poster.close()
    assert posted[0] == "rollout" and "reward" not in posted


def test_a_lost_sidecar_does_not_stop_the_worker():
    def lost(status):
        raise PeerLost("gone")

    poster = StatusPoster(lost)
    poster({"stage": "rollout"})
    poster.close()
    poster({"stage": "reward"})


def is_waiting():
    return any(thread.name == "stop" for thread in threading.enumerate())


def test_a_signal_is_passed_on_at_once_while_the_worker_is_busy():
    stop, asked = StopSignal(), threading.Event()
    old = signal.signal(signal.SIGTERM, lambda *_: stop.request())
    try:
        with stop.passed_on(asked.set):
            os.kill(os.getpid(), signal.SIGTERM)
            assert asked.wait(TEST_TIMEOUT_SECONDS)
    finally:
        signal.signal(signal.SIGTERM, old)
    assert not is_waiting()


def test_a_request_that_comes_before_there_is_anybody_to_tell_is_kept():
    stop, asked = StopSignal(), []
    stop.request()
    with stop.passed_on(lambda: asked.append("stop")):
        wait_for(lambda: asked)
        stop.request()
        wait_for(lambda: len(asked) == 2)


def test_nobody_is_asked_to_stop_without_a_request():
    asked = []
    with StopSignal().passed_on(lambda: asked.append("stop")):
        assert is_waiting()
    assert asked == [] and not is_waiting()


def test_a_request_that_finds_no_sidecar_does_not_stop_the_worker():
    stop = StopSignal()

    def lost():
        raise PeerLost("gone")

    with stop.passed_on(lost):
        stop.request()
        wait_for(lambda: not is_waiting())
    assert not is_waiting()
