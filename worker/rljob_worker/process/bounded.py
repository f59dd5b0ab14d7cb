"""Questions that may never be answered, asked for a while."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Answer = TypeVar("Answer")

HUB_SECONDS = 5.0
"""For the hub to say that it knows a model. Its library tries again for minutes, and looks for its name without end."""


def within(seconds: float, ask: Callable[[], Answer]) -> Answer:
    """The answer, or what asking raises. TimeoutError where there is none in time: then a thread goes on waiting, until
    the process ends at most."""
    answer: Future[Answer] = Future()

    def wait() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=wait, daemon=True).start()
    return answer.result(seconds)
