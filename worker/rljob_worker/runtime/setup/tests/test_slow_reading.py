"""Reading that takes long is named while others still wait."""

from __future__ import annotations

import logging
import threading

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.runtime.setup.slow_reading import slow_reading_named


class Heard(logging.Handler):
    """Tells when something was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.event, self.said = threading.Event(), list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        self.event.set()


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_what_has_come_and_what_ends_the_attempt_is_said_while_there_is_time(heard: Heard) -> None:
    logger = logging.getLogger("rljob_worker.runtime.setup.slow_reading")
    logger.addHandler(heard)
    try:
        with slow_reading_named(0.02):
            assert heard.event.wait(TEST_TIMEOUT_SECONDS)
    finally:
        logger.removeHandler(heard)
    (said,) = heard.said
    assert "have come from this machine's storage" in said and "raise dataBuffer.deadlineSeconds" in said


def test_reading_that_ends_in_time_leaves_no_thread() -> None:
    before = threading.active_count()
    with slow_reading_named(1000):
        assert threading.active_count() == before + 1
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(TEST_TIMEOUT_SECONDS)
    assert threading.active_count() == before


def test_an_error_of_reading_comes_through(heard: Heard) -> None:
    with pytest.raises(OSError, match="damaged"), slow_reading_named(1000):
        raise OSError("damaged")
