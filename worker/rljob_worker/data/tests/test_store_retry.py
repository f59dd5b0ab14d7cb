"""A minute of 503 is outlasted, an eternity is not; hand-worked pauses, and no real second."""

import asyncio

import pytest

from rljob_worker.data.objects.tests.clock import Clock, patience
from rljob_worker.data.store_retry import StoreRetryPolicy
from rljob_worker.errors import DeadlineExceeded

BUSY = "Generic S3 error: ... Server returned non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>"


class Answers:
    """Fails until the clock says otherwise."""

    def __init__(self, clock, until, error):
        self.clock, self.until, self.error, self.asked = clock, until, error, 0

    async def __call__(self):
        self.asked += 1
        if self.clock.now < self.until:
            raise self.error
        return "answer"


def outlast(clock, until, error, seconds=300.0):
    answers = Answers(clock, until, error)
    return asyncio.run(patience(clock, seconds).with_retries("s3://b/a", answers)), answers


def test_a_store_that_is_busy_for_a_minute_is_asked_until_it_answers(caplog):
    clock = Clock()
    answer, answers = outlast(clock, until=60.0, error=RuntimeError(BUSY))
    # the pauses double from half a second to 20: 0.5 1.5 3.5 7.5 15.5 31.5 51.5 71.5
    assert clock.pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0]
    assert (answer, answers.asked) == ("answer", 9)
    assert [record.message for record in caplog.records] == [
        "s3://b/a: 503 Service Unavailable (SlowDown); retrying for up to 300 s"
    ]


def test_one_that_never_answers_is_given_up_with_its_last_words():
    clock = Clock()
    with pytest.raises(DeadlineExceeded) as caught:
        outlast(clock, until=float("inf"), error=RuntimeError(BUSY), seconds=30.0)
    assert str(caught.value) == (
        "s3://b/a: no success within 30 s of retries; its last words: 503 Service Unavailable (SlowDown)"
    )
    assert caught.value.exit_code == 75
    # 0.5 + 1 + 2 + 4 + 8 = 15.5, and 16 more would be beyond 30
    assert clock.now == 15.5


def test_what_will_not_pass_is_raised_at_once():
    clock = Clock()
    with pytest.raises(FileNotFoundError):
        outlast(clock, until=60.0, error=FileNotFoundError("not found"))
    assert clock.pauses == []


def test_ranks_that_were_refused_together_do_not_come_back_together():
    clock, drawn = Clock(), []

    def draw(least, most):
        drawn.append((least, most))
        return most / 4

    answers = Answers(clock, 1.0, RuntimeError(BUSY))
    assert asyncio.run(StoreRetryPolicy(300.0, clock.read, clock.sleep, draw).with_retries("it", answers)) == "answer"
    assert drawn[:3] == [(0.0, 0.5), (0.0, 1.0), (0.0, 2.0)]
    assert clock.pauses == [0.125, 0.25, 0.5, 1.0]
