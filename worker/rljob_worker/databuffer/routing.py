"""Who sends what to whom, from the Plan alone: pure, and the same on every host.

A *part* is what one producer puts in one step; a *share* is what one data-parallel rank of the consumer gets.
Both have numbers, `part` and `share`. A host is one pod: one data buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rljob_api.planning.plan import GroupPlan, Plan, StagePlan
from rljob_api.vocabulary.keys import EDGE_VERDICT
from rljob_worker.databuffer import repartition
from rljob_worker.databuffer.hosts import Host, Members, Worker
from rljob_worker.databuffer.metrics_route import MetricsRoute
from rljob_worker.minibatches import mini_batch_of

Int64 = NDArray[np.int64]


class RowsRoute(Protocol):
    """How rows of one edge travel."""

    @property
    def name(self) -> str: ...

    @property
    def stage(self) -> str:
        """The stage that waits for the rows, for messages."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """What crosses; None: whatever is put."""

    @property
    def needs_layouts(self) -> bool:
        """Whether where rows go or come from depends on all producers' rows, so that layouts are exchanged."""

    @property
    def num_parts(self) -> int: ...

    @property
    def num_shares(self) -> int: ...

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

    @property
    def participants(self) -> tuple[Host, ...]:
        """Hosts of the layout tree: producers first, each once."""

    @property
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
    participants: tuple[Host, ...] = field(repr=False)
    num_producer_hosts: int = field(repr=False)

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
        producer = self.producer_stage
        return self.consumer_stage.balance != "None" or producer.balance != "None" or producer.scatters_rows

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

    def is_later(self, consumer: StageRoute) -> bool:
        """Whether `consumer`'s stage runs on our producers' hosts, and only after our producing stage."""
        return consumer.consumers.group == self.producers.group and consumer.consumer_level > self.producer_level

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


@dataclass(frozen=True, slots=True)
class BroadcastRoute:
    """The same chunks to every worker of some groups, along a tree of hosts with the source's host at its root."""

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


def sources_by_host(route: RowsRoute, parts: Iterable[int]) -> dict[Host, list[int]]:
    """Parts by the host that holds them."""
    by_host: dict[Host, list[int]] = {}
    for part in parts:
        by_host.setdefault(route.producer(part)[1], []).append(part)
    return by_host


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
    metrics = MetricsRoute(tuple(plan.groups), lead, Host(plan.lead_group, 0))
    rows[metrics.name] = metrics
    broadcasts = {EDGE_VERDICT: _broadcast(EDGE_VERDICT, lead, tuple(plan.groups))}
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


def _broadcast(name: str, source: Worker, targets: tuple[GroupPlan, ...]) -> BroadcastRoute:
    # the source is rank 0 of its group, hence on its host 0
    hosts = [Host(source.group, 0)] + [Host(g.name, i) for g in targets for i in range(g.replicas)]
    return BroadcastRoute(name, source, tuple(dict.fromkeys(hosts)), targets)
