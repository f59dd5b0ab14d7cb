"""Questions that may never be answered, asked for a while."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NoReturn, TypeVar

Answer = TypeVar("Answer")

HUB_SECONDS = 5.0
"""For the hub to say that it knows a model. Its library tries again for minutes, and looks for its name without end."""


def within(seconds: float, ask: Callable[[], Answer]) -> Answer:
    """The answer, or what asking raises. TimeoutError where there is none in time: then a thread goes on waiting, until
    the process ends at most."""
    answers: SimpleQueue[Callable[[], Answer]] = SimpleQueue()

    def wait() -> None:
        try:
            answer = ask()
        except BaseException as error:
            answers.put(partial(_raise, error))
        else:
            answers.put(lambda: answer)

    Thread(target=wait, daemon=True).start()
    try:
        return answers.get(timeout=seconds)()
    except Empty:
        raise TimeoutError from None


def _raise(error: BaseException) -> NoReturn:
    raise error
