"""Who sends what to whom, from the Plan alone: pure, and the same on every host.

A *part* is what one producer puts in one step; a *share* is what one data-parallel rank of the consumer gets. Both have
numbers, `part` and `share`. A host is one pod: one data buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rljob_api.keys import EDGE_METRICS, EDGE_VERDICT
from rljob_api.plan import GroupPlan, Mesh, Plan, StagePlan
from rljob_worker.databuffer import repartition
from rljob_worker.minibatches import mini_batch_of

Int64 = NDArray[np.int64]

METRICS = EDGE_METRICS
VERDICT = EDGE_VERDICT
FAN_OUT = 32


@dataclass(frozen=True, slots=True, order=True)
class Host:
    """One pod of one worker group."""

    group: str
    index: int

    def __str__(self) -> str:
        return f"{self.group}-{self.index}"


@dataclass(frozen=True, slots=True, order=True)
class Worker:
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

    def copy_of(self, worker: Worker) -> int | None:
        if worker.group != self.group or worker.rank >= self.num_copies * self.ranks_per_copy:
            return None
        return worker.rank // self.ranks_per_copy

    def ranks_on(self, host: Host, copy: int) -> list[int]:
        return [rank for rank in self.ranks(copy) if self.host(rank) == host]


class RowsRoute(Protocol):
    """How rows of one edge travel."""

    name: str
    stage: str
    """The stage that waits for the rows, for messages."""
    columns: tuple[str, ...] | None
    """What crosses; None: whatever is put."""
    needs_layouts: bool
    """Whether where a row goes or comes from depends on all producers' rows, so that their layouts are exchanged."""
    num_parts: int
    num_shares: int

    def producer(self, part: int) -> tuple[Worker, Host]: ...

    def part_of(self, worker: Worker) -> int | None: ...

    def share_of(self, worker: Worker) -> int | None: ...

    def readers(self, host: Host, share: int) -> list[int]:
        """Ranks on `host` that read the share."""

    def consumer_hosts(self, share: int) -> list[Host]: ...

    def sources(self, share: int) -> Sequence[int]:
        """Parts that can hold rows of the share, when rows go by ordinal on both sides.

        A share without prompts still has one, part 0: somebody must tell the columns' types.
        """

    def shares_fed_by(self, part: int) -> Sequence[int]:
        """The other way round."""

    def assign(self, step: int, row_ids: Int64, group_ids: Int64, num_tokens: Int64) -> Int64:
        """Share of every row, [rows] in any order."""

    def participants(self) -> list[Host]:
        """Hosts of the layout tree: producers first, each once."""

    def num_producer_hosts(self) -> int: ...


@dataclass(frozen=True, slots=True)
class StageRoute:
    """Rows from the layout of one stage to the layout of another."""

    name: str
    producer_stage: StagePlan
    consumer_stage: StagePlan
    columns: tuple[str, ...]
    producers: Members
    consumers: Members
    batch_size: int
    num_mini_batches: int
    seed: int
    producer_level: int
    """Position of the producing stage in its group's schedule."""
    consumer_level: int
    participants_: tuple[Host, ...] = field(repr=False)
    num_producer_hosts_: int = field(repr=False)

    @staticmethod
    def of(plan: Plan, edge_name: str) -> StageRoute:
        edge = plan.edge(edge_name)
        producer, consumer = plan.stage(edge.producer), plan.stage(edge.consumer)
        producers = Members.of(plan.group(producer.group), producer.mesh)
        consumers = Members.of(plan.group(consumer.group), consumer.mesh)
        hosts = list(dict.fromkeys(h for copy in range(producers.num_copies) for h in producers.hosts(copy)[:1]))
        others = [h for copy in range(consumers.num_copies) for h in consumers.hosts(copy)]
        return StageRoute(
            edge.name,
            producer,
            consumer,
            tuple(edge.columns),
            producers,
            consumers,
            plan.spec.data.batch_size,
            num_mini_batches(plan),
            plan.spec.seed,
            plan.group(producer.group).schedule.index(producer.name),
            plan.group(consumer.group).schedule.index(consumer.name),
            tuple(dict.fromkeys(hosts + others)),
            len(hosts),
        )

    @property
    def stage(self) -> str:
        return self.consumer_stage.name

    @property
    def needs_layouts(self) -> bool:
        return self.consumer_stage.balance != "None" or self.producer_stage.balance != "None"

    @property
    def num_parts(self) -> int:
        return self.producers.num_copies

    @property
    def num_shares(self) -> int:
        return self.consumers.num_copies

    def producer(self, part: int) -> tuple[Worker, Host]:
        rank = self.producers.ranks(part)[0]
        return Worker(self.producers.group, rank), self.producers.host(rank)

    def part_of(self, worker: Worker) -> int | None:
        copy = self.producers.copy_of(worker)
        return copy if copy is not None and worker.rank == self.producers.ranks(copy)[0] else None

    def share_of(self, worker: Worker) -> int | None:
        return self.consumers.copy_of(worker)

    def readers(self, host: Host, share: int) -> list[int]:
        return self.consumers.ranks_on(host, share)

    def consumer_hosts(self, share: int) -> list[Host]:
        return self.consumers.hosts(share)

    def sources(self, share: int) -> list[int]:
        return self._overlap(share, self.num_shares, self.num_parts) or [0]

    def shares_fed_by(self, part: int) -> list[int]:
        fed = self._overlap(part, self.num_parts, self.num_shares)
        if part == 0:
            fed += [share for share in range(self.num_shares) if share not in fed and self._is_empty(share)]
        return fed

    def _overlap(self, index: int, size: int, other_size: int) -> list[int]:
        """Parts (shares) that have prompts in common with a share (part)."""
        first, last = repartition.ordinal_range(index, parts=size, batch_size=self.batch_size)
        prompts = np.arange(first, last)
        return [int(other) for other in np.unique(prompts * other_size // self.batch_size)]

    def _is_empty(self, share: int) -> bool:
        first, last = repartition.ordinal_range(share, parts=self.num_shares, batch_size=self.batch_size)
        return first >= last

    def assign(self, step: int, row_ids: Int64, group_ids: Int64, num_tokens: Int64) -> Int64:
        balance = self.consumer_stage.balance
        if balance == "None":
            return repartition.by_ordinal(group_ids, parts=self.num_shares, batch_size=self.batch_size)
        mini_batches = mini_batch_of(
            group_ids,
            step=step,
            batch_size=self.batch_size,
            num_mini_batches=self.num_mini_batches,
            seed=self.seed,
        )
        return repartition.balanced(
            row_ids,
            group_ids,
            repartition.row_costs(num_tokens, balance),
            mini_batches,
            parts=self.num_shares,
            whole_groups=self.consumer_stage.needs_groups,
        )

    def participants(self) -> list[Host]:
        return list(self.participants_)

    def num_producer_hosts(self) -> int:
        return self.num_producer_hosts_


@dataclass(frozen=True, slots=True)
class MetricsRoute:
    """One row of every worker of the job to the lead; part and row id are the worker's ordinal over all groups."""

    groups: tuple[GroupPlan, ...]
    lead: Worker
    lead_host: Host
    name: str = METRICS
    stage: str = METRICS
    columns: tuple[str, ...] | None = None
    needs_layouts: bool = False
    num_shares: int = 1

    @property
    def num_parts(self) -> int:
        return sum(group.num_workers for group in self.groups)

    def producer(self, part: int) -> tuple[Worker, Host]:
        rank = part
        for group in self.groups:
            if rank < group.num_workers:
                return Worker(group.name, rank), Host(group.name, rank // group.workers_per_host)
            rank -= group.num_workers
        raise AssertionError(f"there is no worker {part}")

    def part_of(self, worker: Worker) -> int | None:
        offset = 0
        for group in self.groups:
            if group.name == worker.group:
                return offset + worker.rank
            offset += group.num_workers
        return None

    def share_of(self, worker: Worker) -> int | None:
        return 0 if worker == self.lead else None

    def readers(self, host: Host, share: int) -> list[int]:
        return [self.lead.rank] if host == self.lead_host else []

    def consumer_hosts(self, share: int) -> list[Host]:
        return [self.lead_host]

    def sources(self, share: int) -> range:
        return range(self.num_parts)

    def shares_fed_by(self, part: int) -> range:
        return range(1)

    def assign(self, step: int, row_ids: Int64, group_ids: Int64, num_tokens: Int64) -> Int64:
        return np.zeros(len(row_ids), np.int64)

    def participants(self) -> list[Host]:
        return []

    def num_producer_hosts(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class BroadcastRoute:
    """The same chunks to every worker of some groups, relayed along a tree of hosts with the source's host at its root."""

    name: str
    source: Worker
    hosts: tuple[Host, ...] = field(repr=False)
    targets: tuple[GroupPlan, ...] = field(repr=False)

    @property
    def root(self) -> Host:
        return self.hosts[0]

    def readers(self, host: Host) -> list[int]:
        """Ranks on `host` that receive; the source keeps what it sends and is none of them."""
        for group in self.targets:
            if group.name == host.group:
                first = host.index * group.workers_per_host
                ranks = range(first, first + group.workers_per_host)
                return [rank for rank in ranks if Worker(group.name, rank) != self.source]
        return []


@dataclass(frozen=True, slots=True)
class Routes:
    """All buffer edges of a plan by name."""

    rows: dict[str, RowsRoute]
    broadcasts: dict[str, BroadcastRoute]


def routes_of(plan: Plan) -> Routes:
    """Every edge that goes through data buffers, the built-in ones included."""
    rows: dict[str, RowsRoute] = {
        edge.name: StageRoute.of(plan, edge.name) for edge in plan.edges if edge.transport == "Buffer"
    }
    lead = Worker(plan.lead_group, 0)
    rows[METRICS] = MetricsRoute(tuple(plan.groups), lead, Host(plan.lead_group, 0))
    broadcasts = {VERDICT: _broadcast(VERDICT, lead, tuple(plan.groups))}
    for name in dict.fromkeys(edge.name for edge in plan.weights if edge.transport == "Buffer"):
        edges = [edge for edge in plan.weights if edge.name == name and edge.transport == "Buffer"]
        source = Worker(plan.engine(edges[0].source).group, 0)
        targets = dict.fromkeys(plan.engine(edge.target).group for edge in edges)
        broadcasts[name] = _broadcast(name, source, tuple(plan.group(target) for target in targets))
    return Routes(rows, broadcasts)


def num_mini_batches(plan: Plan) -> int:
    """Optimizer steps per pass over a step's rows."""
    rows = plan.spec.training.mini_batch_rows
    total = plan.spec.data.batch_size * plan.spec.algorithm.group_size
    return 1 if rows is None else total // rows


def tree_parent(position: int, fan_out: int = FAN_OUT) -> int | None:
    """Position of the parent of a member of a tree that is numbered level by level; None for the root."""
    return None if position == 0 else (position - 1) // fan_out


def tree_children(position: int, size: int, fan_out: int = FAN_OUT) -> range:
    """Positions of the children, in order."""
    first = position * fan_out + 1
    return range(min(first, size), min(first + fan_out, size))


def _broadcast(name: str, source: Worker, targets: tuple[GroupPlan, ...]) -> BroadcastRoute:
    # the source is rank 0 of its group, hence on its host 0
    hosts = [Host(source.group, 0)] + [Host(g.name, i) for g in targets for i in range(g.replicas)]
    return BroadcastRoute(name, source, tuple(dict.fromkeys(hosts)), targets)
