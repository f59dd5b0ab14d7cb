"""Requests for leases that an owner cannot answer: it holds them, or sends them to an owner that has leases.

Pure book-keeping, under the lock of the owner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from rljob_worker.databuffer.protocol.peer_side import LeaseRequested
from rljob_worker.databuffer.routes.hosts import Host


class HeldRequests:
    """Those of guests, in the order in which they came, and who else may answer them."""

    def __init__(self) -> None:
        self._asks: deque[LeaseRequested] = deque()
        self._free_at: dict[Host, int] = {}
        """Leases that another owner had when it last sent word, without those that were asked for from here."""

    def __bool__(self) -> bool:
        return bool(self._asks)

    def add(self, ask: LeaseRequested) -> None:
        self._asks.append(ask)

    def lose(self, guest: Host) -> None:
        """A guest is gone: it asks nothing."""
        self._asks = deque(ask for ask in self._asks if ask.guest != str(guest))

    def answer_all(self, has_any: Callable[[], bool], answer: Callable[[LeaseRequested], bool]) -> None:
        """Try to answer each while there is something; those that were not answered are held on."""
        held = deque[LeaseRequested]()
        while self._asks and has_any():
            ask = self._asks.popleft()
            if not answer(ask):
                held.append(ask)
        self._asks = held + self._asks

    def send_to(self, owner: Host, num_free: int) -> tuple[list[LeaseRequested], int]:
        """Another owner has leases: the requests that go there, and how many leases are left for others."""
        asks = [self._asks.popleft() for _ in range(min(len(self._asks), num_free))]
        left = self._free_at[owner] = num_free - len(asks)
        return [replace(ask, is_passed_on=True) for ask in asks], left

    def pass_on(self, newest: LeaseRequested) -> tuple[Host, LeaseRequested] | None:
        """What has just come and is held, to an owner that has leases as far as is known here."""
        if newest.is_passed_on or not self._asks or self._asks[-1] is not newest:
            return None
        other = max(self._free_at, key=lambda owner: self._free_at[owner], default=None)
        if other is None or self._free_at[other] <= 0:
            return None
        self._free_at[other] -= 1
        return other, replace(self._asks.pop(), is_passed_on=True)
