"""Requests that wait to be admitted, in the order in which they will be."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from itertools import islice

from rljob_worker.engines.rollout.transformers.request import DecodingRequest


class WaitingRequests:
    """A queue whose first requests are admitted first."""

    def __init__(self) -> None:
        self._requests: deque[DecodingRequest] = deque()
        self.longest = self.most_remaining = 0
        """Tokens to compute and to draw: at least those of every request that waits, exact when nothing has left."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[DecodingRequest]:
        return iter(self._requests)

    def first(self, number: int) -> list[DecodingRequest]:
        """The requests that are next, at most `number`."""
        return list(islice(self._requests, number))

    def append(self, requests: Sequence[DecodingRequest]) -> None:
        """Wait behind all others."""
        self._measure(requests)
        self._requests.extend(requests)

    def prepend(self, requests: Sequence[DecodingRequest]) -> None:
        """Wait before all others, in this order."""
        self._measure(requests)
        self._requests.extendleft(reversed(requests))

    def pop(self, number: int) -> None:
        """The first ones wait no longer."""
        for _ in range(number):
            self._requests.popleft()
        if not self._requests:
            self.longest = self.most_remaining = 0

    def take(self, row_ids: Container[int]) -> list[DecodingRequest]:
        """Remove the requests of these rows and return them."""
        result = [request for request in self._requests if request.row_id in row_ids]
        self._requests = deque(request for request in self._requests if request.row_id not in row_ids)
        return result

    def _measure(self, requests: Sequence[DecodingRequest]) -> None:
        for request in requests:
            num_drawn = len(request.drawn)
            self.longest = max(self.longest, len(request.prompt) + num_drawn)
            self.most_remaining = max(self.most_remaining, request.max_tokens - num_drawn)
