"""Hosts, workers, and how they are numbered: pure arithmetic that every host does alike."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import GroupPlan, Plan


@dataclass(frozen=True, slots=True, order=True)
class Host:
    """One pod of one worker group."""

    group: str
    index: int

    def __str__(self) -> str:
        return f"{self.group}-{self.index}"

    @staticmethod
    def named(name: str) -> Host:
        """The host that `str` gives this name."""
        group, _, index = name.rpartition("-")
        return Host(group, int(index))


def hosts_of(plan: Plan) -> tuple[Host, ...]:
    """All pods of the gang, group by group as planned."""
    return tuple(Host(group.name, index) for group in plan.gang for index in range(group.replicas))


def guests_of(plan: Plan) -> tuple[Host, ...]:
    """Every guest that there may be, whether it is there or not; none without an elastic group."""
    group = plan.elastic_group
    return () if group is None else tuple(Host(group.name, index) for index in range(group.replicas))


@dataclass(frozen=True, slots=True, order=True)
class WorkerId:
    """One worker by its rank in its group."""

    group: str
    rank: int

    def __str__(self) -> str:
        return f"rank {self.rank} of group {self.group}"


@dataclass(frozen=True, slots=True)
class Members:
    """The workers of one group, as divided by one mesh: who leads the rows of a dp rank, who shares them."""

    group: str
    num_workers: int
    workers_per_host: int
    ranks_per_copy: int

    @staticmethod
    def of(group: GroupPlan, mesh: Mesh) -> Members:
        return Members(group.name, group.num_workers, group.workers_per_host, mesh.ranks_per_copy)

    @property
    def num_copies(self) -> int:
        return self.num_workers // self.ranks_per_copy

    def host(self, rank: int) -> Host:
        return Host(self.group, rank // self.workers_per_host)

    def ranks(self, copy: int) -> range:
        return range(copy * self.ranks_per_copy, (copy + 1) * self.ranks_per_copy)

    def hosts(self, copy: int) -> list[Host]:
        """Hosts that the ranks of one copy span, in order."""
        return list(dict.fromkeys(self.host(rank) for rank in self.ranks(copy)))

    def copy_of(self, worker: WorkerId) -> int | None:
        if worker.group != self.group or worker.rank >= self.num_copies * self.ranks_per_copy:
            return None
        return worker.rank // self.ranks_per_copy

    def copies_led_on(self, host: Host) -> tuple[int, ...]:
        """Copies whose first rank is on a host."""
        if host.group != self.group:
            return ()
        first, size = host.index * self.workers_per_host, self.ranks_per_copy
        copies = range(-(-first // size), -(-(first + self.workers_per_host) // size))
        return tuple(copy for copy in copies if copy < self.num_copies)

    def ranks_on(self, host: Host, copy: int) -> list[int]:
        return [rank for rank in self.ranks(copy) if self.host(rank) == host]
