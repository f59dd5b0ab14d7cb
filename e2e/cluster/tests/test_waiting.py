"""Waiting: what gets on is waited for, what stands still is not."""

from itertools import count

import pytest

from e2e.cluster import waiting
from rljob_api.tests.timeouts import TIMEOUT_FACTOR


class Clock:
    """Every look at it takes a second; sleeping takes none."""

    def __init__(self) -> None:
        self.seconds = count()

    def monotonic(self) -> float:
        return float(next(self.seconds))

    def sleep(self, seconds: float) -> None:
        pass


def test_what_gets_on_is_waited_for_longer_than_what_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "time", Clock())
    steps = iter(range(1000))
    # a hundred steps, each of which takes one or two looks at the clock
    waiting.wait_until(lambda: next(steps) >= 100, "step 100", 3, reached=lambda: next(steps))
    with pytest.raises(
        TimeoutError, match=f"waited {3 * TIMEOUT_FACTOR:.0f} s for step 1,000; the last answer was False"
    ):
        waiting.wait_until(lambda: False, "step 1,000", 3, reached=lambda: 7)
