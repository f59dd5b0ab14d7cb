"""All hosts of a job as one tree, along which small messages spread: up and merged, or down. Pure arithmetic.

Positions are level by level, the host of the lead at the root, its group first:

    fan-out 2:          0
                     1     2
                    3 4   5 6        the parent of p is (p - 1) // 2, its children are 2 p + 1 and 2 p + 2

With a fan-out of 32, 1,024 hosts are three levels, and nobody talks to more than 33 others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rljob_api.planning.plan import Plan
from rljob_worker.databuffer.routes.hosts import Host

# topics of the tree besides layouts: reports of the workers to the lead, those of a validation that is made while later
# steps are under way, and its announcements to all
REPORT: Final = "report"
VALIDATION: Final = "validation"
OPENING = "opening"
VERDICT = "verdict"


FAN_OUT = 32


@dataclass(frozen=True, slots=True)
class JobTree:
    """The hosts of the gang's groups, and who is whose parent."""

    groups: tuple[tuple[str, int], ...]
    """(name, hosts), the lead's group first."""
    fan_out: int = FAN_OUT

    @staticmethod
    def of(plan: Plan, fan_out: int = FAN_OUT) -> JobTree:
        groups = sorted(plan.gang, key=lambda group: group.name != plan.lead_group)
        return JobTree(tuple((group.name, group.replicas) for group in groups), fan_out)

    @property
    def size(self) -> int:
        return sum(hosts for _, hosts in self.groups)

    @property
    def root(self) -> Host:
        return Host(self.groups[0][0], 0)

    def span(self, group: str) -> range:
        """Positions of a group's hosts."""
        first = 0
        for name, hosts in self.groups:
            if name == group:
                return range(first, first + hosts)
            first += hosts
        raise KeyError(group)

    def position(self, host: Host) -> int:
        """KeyError for a host of no group of the job."""
        span = self.span(host.group)
        if not 0 <= host.index < len(span):
            raise KeyError(host)
        return span[host.index]

    def host(self, position: int) -> Host:
        for name, hosts in self.groups:
            if position < hosts:
                return Host(name, position)
            position -= hosts
        raise IndexError(position)

    def parent(self, host: Host) -> Host | None:
        """None for the root."""
        position = self.position(host)
        return None if position == 0 else self.host((position - 1) // self.fan_out)

    def children(self, host: Host) -> tuple[Host, ...]:
        first = self.position(host) * self.fan_out + 1
        return tuple(self.host(index) for index in range(first, min(first + self.fan_out, self.size)))

    def neighbours(self, host: Host) -> tuple[Host, ...]:
        """Parent and children."""
        parent = self.parent(host)
        return (() if parent is None else (parent,)) + self.children(host)

    def positions(self, groups: Iterable[str]) -> tuple[int, ...]:
        """Positions of all hosts of some groups, ascending."""
        return tuple(sorted(position for group in groups for position in self.span(group)))

    def reaches(self, host: Host, positions: Sequence[int]) -> bool:
        """Whether `host`, or a host below it, is at one of `positions`, which ascend."""
        return self._num_within(host, positions) > 0

    def covers(self, host: Host, positions: Sequence[int]) -> bool:
        """Whether all of them are `host`'s, or of hosts below it."""
        return self._num_within(host, positions) == len(positions)

    def _num_within(self, host: Host, positions: Sequence[int]) -> int:
        """How many of them, level by level."""
        result, first, last = 0, self.position(host), self.position(host) + 1
        while first < self.size:
            result += bisect_left(positions, last) - bisect_left(positions, first)
            first, last = first * self.fan_out + 1, last * self.fan_out + 1
        return result
