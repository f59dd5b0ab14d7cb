"""Patience whose clock the tests turn: sleeping takes no time."""

from rljob_worker.data.store_retry import StoreRetryPolicy


class Clock:
    def __init__(self):
        self.now = 0.0
        self.pauses = []

    def read(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds
        self.pauses.append(seconds)


def patience(clock, seconds=300.0):
    """Draws the longest pause there may be."""
    return StoreRetryPolicy(seconds, clock.read, clock.sleep, lambda least, most: most)
