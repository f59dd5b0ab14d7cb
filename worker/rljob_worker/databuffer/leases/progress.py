"""How far the workers of an owner are with what guests made: leases that they wait for, were given and have copied.

Pure book-keeping, under the lock of the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rljob_worker.databuffer.routes.guest_route import LeaseId
from rljob_worker.databuffer.routes.hosts import WorkerId


class StepProgress:
    """Steps of stages, and validations, of one owner."""

    def __init__(self, num_leases: Callable[[str], int]) -> None:
        """num_leases: of all workers of this host in a step of a stage, by the stage."""
        self._num_leases = num_leases
        self._wanted: dict[tuple[str, int], int] = {}
        """The step that a rank asks for, by stage and rank."""
        self._given: dict[LeaseId, bool] = {}
        """Leases that a worker was given, and whether it has copied them."""
        self._num_absent: dict[tuple[str, int], int] = {}
        """By stage and step: leases that are not here, once one is."""
        self._num_unread: dict[tuple[str, int], int] = {}
        """By stage and step: leases that workers have not copied, once one is."""

    def want(self, stage: str, worker: WorkerId, step: int) -> bool:
        """A worker asks for a step; whether it did not before."""
        key = stage, worker.rank
        is_new = self._wanted.get(key) != step
        self._wanted[key] = step
        return is_new

    def is_wanted(self, lease: LeaseId) -> bool:
        """Whether the worker of a lease asks for its step, or a later one."""
        return lease.step <= self._wanted.get((lease.stage, lease.rank), -1)

    def give(self, lease: LeaseId) -> bool:
        """A worker may have a lease that is here; False where it had it."""
        if lease in self._given:
            return False
        self._given[lease] = False
        return True

    def are_copied(self, leases: Iterable[LeaseId]) -> bool:
        """Whether a worker has copied all of these."""
        return all(self._given.get(lease) for lease in leases)

    def copied(self, lease: LeaseId) -> bool:
        """A worker has copied a lease; whether that was the last of its step, which is over by that."""
        assert self._given.get(lease) is False, f"{lease} was not given to its worker"
        self._given[lease] = True
        if not self._count_down(self._num_unread, lease):
            return False
        self._given = {
            other: is_copied
            for other, is_copied in self._given.items()
            if other.stage != lease.stage or other.step >= lease.step
        }
        return True

    def arrived(self, lease: LeaseId) -> bool:
        """A lease is here; whether it was the last of its step."""
        return self._count_down(self._num_absent, lease)

    def _count_down(self, counts: dict[tuple[str, int], int], lease: LeaseId) -> bool:
        key = lease.stage, lease.step
        counts[key] = counts.get(key, self._num_leases(lease.stage)) - 1
        if counts[key]:
            return False
        del counts[key]
        return True
