"""The token bucket, by hand-worked numbers and against its definition."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.cluster.rate_limit import RateLimit, TokenBucket
from rljob_operator.tests.virtual_time import now, run


def test_a_burst_is_free_and_then_requests_come_at_the_rate() -> None:
    bucket = TokenBucket(per_second=50, burst=3)
    # three at once; the fourth waits 1/50 s, the fifth 2/50 s
    assert [bucket.take(10.0) for _ in range(5)] == [0, 0, 0, pytest.approx(0.02), pytest.approx(0.04)]


def test_tokens_return_up_to_the_burst_and_no_further() -> None:
    bucket = TokenBucket(per_second=2, burst=2)
    assert [bucket.take(0.0), bucket.take(0.0)] == [0, 0]
    assert bucket.take(0.5) == 0  # one token after half a second
    # an hour later there are two, not 7200
    assert [bucket.take(3600.0) for _ in range(3)] == [0, 0, 0.5]


def test_1024_creates_at_the_default_limits_take_less_than_19_seconds() -> None:
    async def create_all() -> float:
        limit = RateLimit(TokenBucket(per_second=50, burst=100))
        await asyncio.gather(*(limit.wait() for _ in range(1024)))
        return now()

    assert run(create_all()) == pytest.approx((1024 - 100) / 50)  # 18.48 s


def test_requests_are_let_through_in_the_order_they_came() -> None:
    async def three() -> list[int]:
        limit = RateLimit(TokenBucket(per_second=1, burst=1))
        order: list[int] = []

        async def one(number: int) -> None:
            await limit.wait()
            order.append(number)

        await asyncio.gather(*(one(number) for number in range(3)))
        return order

    assert run(three()) == [0, 1, 2]


def test_without_a_bucket_nobody_waits() -> None:
    async def many() -> float:
        for _ in range(1000):
            await RateLimit(None).wait()
        return now()

    assert run(many()) == 0


@given(
    st.floats(0.5, 100),
    st.integers(1, 50),
    st.lists(st.floats(0, 5), min_size=1, max_size=60),
)
def test_in_any_window_there_are_at_most_burst_plus_rate_times_length(
    per_second: float, burst: int, gaps: list[float]
) -> None:
    bucket = TokenBucket(per_second, burst)
    when, sent = 0.0, []
    for gap in gaps:
        when += gap
        sent.append(when + bucket.take(when))
    for first in range(len(sent)):
        for last in range(first, len(sent)):
            assert last - first + 1 <= burst + per_second * (sent[last] - sent[first]) + 1e-6
