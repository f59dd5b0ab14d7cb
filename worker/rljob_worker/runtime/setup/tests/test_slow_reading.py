"""Reading that takes long is named while others still wait."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.runtime.setup import slow_reading
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


def said_of_slow_reading(heard: Heard) -> str:
    logger = logging.getLogger("rljob_worker.runtime.setup.slow_reading")
    logger.addHandler(heard)
    try:
        with slow_reading_named(0.02):
            assert heard.event.wait(TEST_TIMEOUT_SECONDS)
    finally:
        logger.removeHandler(heard)
    (said,) = heard.said
    return said


def test_what_has_come_and_what_ends_the_attempt_is_said_while_there_is_time(heard: Heard) -> None:
    said = said_of_slow_reading(heard)
    assert "have come from this machine's storage" in said and "raise dataBuffer.deadlineSeconds" in said


def test_a_machine_that_does_not_count_what_it_reads_is_slow_too(
    heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_reading, "STORAGE_COUNTS", tmp_path / "absent")
    said = said_of_slow_reading(heard)
    assert "still being read after 0 s: workers that have theirs wait 0 s" in said and "have come" not in said


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
