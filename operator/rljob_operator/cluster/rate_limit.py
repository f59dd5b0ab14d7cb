"""Client-side rate limit: a token bucket, first come first served."""

from __future__ import annotations

import asyncio


class TokenBucket:
    """Tokens flow in at `per_second` up to `burst`; each request takes one, in advance where there is none.

    Pure: the caller says what time it is, and does the waiting.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)
        self._counted_at: float | None = None

    def take(self, now: float) -> float:
        """Take one token; the seconds until it is there."""
        if self._counted_at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._counted_at) * self._per_second)
        self._counted_at = now
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._per_second)


class RateLimit:
    """Makes callers wait for their token; without a bucket, nobody waits."""

    def __init__(self, bucket: TokenBucket | None) -> None:
        self._bucket = bucket

    async def wait(self) -> None:
        """Return when the next request may be sent."""
        if self._bucket is None:
            return
        seconds = self._bucket.take(asyncio.get_running_loop().time())
        if seconds > 0:
            await asyncio.sleep(seconds)
