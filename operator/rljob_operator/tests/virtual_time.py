"""An event loop whose clock jumps: hours of pauses take milliseconds, and every figure is exact."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Where an ordinary selector would sleep, this one puts the clock forward."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            assert timeout is not None, "everything waits, and nothing will ever happen"
            self.now += max(timeout, 0.0)
        return events


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end; the clock starts at 0."""
    with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
        return runner.run(coroutine)


def now() -> float:
    """Seconds since the beginning."""
    return asyncio.get_running_loop().time()


def block(seconds: float) -> None:
    """As if the caller had kept the loop from everything else for so long."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _JumpingLoop)
    loop.jumping.now += seconds
