"""Waiting for a cluster, which answers when it can."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from rljob_api.tests.timeouts import TIMEOUT_FACTOR

Answer = TypeVar("Answer")


def wait_until(
    question: Callable[[], Answer | None],
    what: str,
    timeout_seconds: float,
    interval_seconds: float = 0.1,
    reached: Callable[[], Any] = lambda: None,
) -> Answer:
    """The first answer that is true; a TimeoutError that says what was waited for, and the last answer.

    RLJOB_TEST_PATIENCE scales the timeout. The time begins anew whenever `reached` changes: what gets on is only slow.
    """
    timeout_seconds *= TIMEOUT_FACTOR
    last, deadline = reached(), time.monotonic() + timeout_seconds
    while True:
        answer = question()
        if answer:
            return answer
        if (now := reached()) != last:
            last, deadline = now, time.monotonic() + timeout_seconds
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_seconds:.0f} s for {what}; the last answer was {answer!r}")
        time.sleep(interval_seconds)
