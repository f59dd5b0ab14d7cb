"""What a guard outlives, counts and says, on a clock that jumps."""

from __future__ import annotations

import asyncio

import pytest

from rljob_operator.guard import EndedByItself, Guard
from rljob_operator.tests.virtual_time import now, run
from rljob_operator.vocabulary.backoff import Backoff
from rljob_operator.vocabulary.key import Key


def test_an_exception_goes_no_further_is_counted_and_names_the_job(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[str] = []
    with Guard(counted.append).around("progress", Key("team", "small")):
        raise RecursionError("too deep")
    assert counted == ["progress"]
    assert "team/small: progress failed" in caplog.text and "too deep" in caplog.text


def test_a_cancellation_is_no_failure() -> None:
    counted: list[str] = []
    with pytest.raises(asyncio.CancelledError), Guard(counted.append).around("progress", "a"):
        raise asyncio.CancelledError
    assert not counted


def test_a_part_that_raises_runs_again_after_growing_pauses() -> None:
    """It fails at 0, at 1, at 3 = 1 + 2, then runs for 100 s: the failure after that is a first one again."""
    counted, began, watched = list[str](), list[float](), list[str]()

    async def part() -> None:
        began.append(now())
        await asyncio.sleep(100 if len(began) == 4 else 0)
        if len(began) < 6:
            raise ValueError("no")

    async def scene() -> None:
        with pytest.raises(EndedByItself, match="events ended"):
            guard = Guard(counted.append, Backoff(1.0, 60.0), chance=lambda: 0.0, begin=watched.append)
            await guard.for_ever("events", part)

    run(scene())
    # the fourth begins at 3 + 4 = 7 and fails at 107; the fifth begins a second later, the sixth 2 s after that
    assert began == [0.0, 1.0, 3.0, 7.0, 108.0, 110.0] and counted == ["events"] * 5
    assert watched == ["events"]
