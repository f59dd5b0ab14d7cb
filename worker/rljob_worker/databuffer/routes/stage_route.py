"""How the rows of an edge travel from the layout of one stage to the layout of another.

A *part* is what one producer puts in one step; a *share* is what one data-parallel rank of the consumer gets.
Both have numbers. A host is one pod: one data buffer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_api.planning.plan import Plan, StagePlan
from rljob_worker.batch.minibatches import mini_batch_of
from rljob_worker.batch.row_index import RowIndex
from rljob_worker.databuffer.routes import repartition
from rljob_worker.databuffer.routes.assignment import Assignment, ProducerLayout
from rljob_worker.databuffer.routes.hosts import Host, Members, WorkerId

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StageRoute:
    """One edge."""

    name: str
    producer_stage: StagePlan
    consumer_stage: StagePlan
    columns: tuple[str, ...]
    producers: Members
    consumers: Members
    batch_size: int
    rows_per_group: int
    """Row numbers that a group may have, even if it has fewer rows."""
    rows_per_trajectory: int
    num_mini_batches: int
    seed: int
    producer_level: int
    """Position of the producing stage in its group's schedule."""
    consumer_level: int
    in_step: bool
    """Whether no worker of the producing group ends a step before all of them have put their part of it."""

    @staticmethod
    def of(plan: Plan, edge_name: str) -> StageRoute:
        edge = plan.edge(edge_name)
        producer, consumer = plan.stage(edge.producer), plan.stage(edge.consumer)
        trains = any(engine.group == producer.group and engine.trainable for engine in plan.engines)
        return StageRoute(
            name=edge.name,
            producer_stage=producer,
            consumer_stage=consumer,
            columns=tuple(edge.columns),
            producers=Members.of(plan.group(producer.group), producer.mesh),
            consumers=Members.of(plan.group(consumer.group), consumer.mesh),
            batch_size=plan.spec.data.batch_size,
            rows_per_group=plan.spec.algorithm.group_size * plan.rows_per_trajectory,
            rows_per_trajectory=plan.rows_per_trajectory,
            num_mini_batches=plan.spec.num_mini_batches,
            seed=plan.spec.seed,
            producer_level=plan.group(producer.group).schedule.index(producer.name),
            consumer_level=plan.group(consumer.group).schedule.index(consumer.name),
            in_step=trains or producer.group == consumer.group,
        )

    @property
    def needs_layouts(self) -> bool:
        """Whether where rows go or come from depends on all producers' rows, so that layouts are exchanged."""
        producer = self.producer_stage
        return self.consumer_stage.balance != "None" or producer.balance != "None" or producer.scatters_rows

    @property
    def num_parts(self) -> int:
        return self.producers.num_copies

    @property
    def num_shares(self) -> int:
        return self.consumers.num_copies

    # ---- who

    def producer(self, part: int) -> WorkerId:
        """The row leader that puts a part."""
        return WorkerId(self.producers.group, self.producers.ranks(part)[0])

    def producer_host(self, part: int) -> Host:
        return self.producers.host(self.producers.ranks(part)[0])

    def parts_on(self, host: Host) -> tuple[int, ...]:
        """Parts that are put on a host."""
        return self.producers.copies_led_on(host)

    def shares_on(self, host: Host) -> tuple[int, ...]:
        """Shares that ranks of a host read."""
        if host.group != self.consumers.group:
            return ()
        first, size = host.index * self.consumers.workers_per_host, self.consumers.ranks_per_copy
        copies = range(first // size, -(-(first + self.consumers.workers_per_host) // size))
        return tuple(copy for copy in copies if copy < self.num_shares)

    @property
    def producer_hosts(self) -> tuple[Host, ...]:
        """Hosts on which parts are put, in order."""
        return tuple(dict.fromkeys(self.producer_host(part) for part in range(self.num_parts)))

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Hosts at either end, each once."""
        consuming = (host for share in range(self.num_shares) for host in self.consumer_hosts(share))
        return tuple(dict.fromkeys((*self.producer_hosts, *consuming)))

    def part_of(self, worker: WorkerId) -> int | None:
        copy = self.producers.copy_of(worker)
        return copy if copy is not None and worker.rank == self.producers.ranks(copy)[0] else None

    def share_of(self, worker: WorkerId) -> int | None:
        return self.consumers.copy_of(worker)

    def readers(self, host: Host, share: int) -> list[int]:
        """Ranks on `host` that read the share."""
        return self.consumers.ranks_on(host, share)

    def consumer_hosts(self, share: int) -> list[Host]:
        return self.consumers.hosts(share)

    # ---- what

    def parts_of(self, share: int, assignment: Assignment | None) -> tuple[int, ...]:
        """Parts that feed a share; a share without rows still has one, part 0: somebody must tell the types.

        Without layouts these are the parts that have prompts in common with it, by ordinal.
        """
        if assignment is not None:
            return assignment.parts_of(share)
        return self._overlap(share, self.num_shares, self.num_parts) or (0,)

    def shares_fed_by(self, part: int, assignment: Assignment | None) -> tuple[int, ...]:
        """The other way round."""
        if assignment is not None:
            return assignment.shares_fed_by(part)
        fed = self._overlap(part, self.num_parts, self.num_shares)
        if part == 0:
            fed += tuple(share for share in range(self.num_shares) if share not in fed and self._is_empty(share))
        return fed

    def assign(self, step: int, layout: ProducerLayout) -> Int64:
        """Share of every row, [rows]; the same on every host, in any order of the rows."""
        balance = self.consumer_stage.balance
        if balance == "None":
            return repartition.by_ordinal(layout.index.group_ids, parts=self.num_shares, batch_size=self.batch_size)
        mini_batches = mini_batch_of(
            layout.index.group_ids,
            step=step,
            batch_size=self.batch_size,
            num_mini_batches=self.num_mini_batches,
            seed=self.seed,
        )
        return repartition.balanced(
            layout.index.row_ids,
            layout.index.group_ids,
            repartition.row_costs(layout.index.num_tokens, balance),
            mini_batches,
            parts=self.num_shares,
            whole_groups=self.consumer_stage.needs_groups,
            rows_per_trajectory=self.rows_per_trajectory,
        )

    def is_of_step(self, step: int, index: RowIndex) -> bool:
        """Whether all rows have numbers of groups of a step, and of rows of these groups."""
        ordinals = index.group_ids - (step - 1) * self.batch_size
        is_group = (ordinals >= 0) & (ordinals < self.batch_size)
        return bool((is_group & (index.row_ids // self.rows_per_group == index.group_ids)).all())

    def may_send(self, host: Host, share: int, index: RowIndex) -> bool:
        """Whether all rows are of a host and of a share, by ordinal: where no layouts are exchanged."""
        part, to = (
            repartition.by_ordinal(index.group_ids, parts=parts, batch_size=self.batch_size)
            for parts in (self.num_parts, self.num_shares)
        )
        return bool((np.isin(part, self.parts_on(host)) & (to == share)).all())

    def is_later(self, other: StageRoute) -> bool:
        """Whether `other`'s consumer runs on our producers' hosts, and only after our producing stage."""
        return other.consumers.group == self.producers.group and other.consumer_level > self.producer_level

    def _overlap(self, index: int, size: int, other_size: int) -> tuple[int, ...]:
        """Parts (shares) that have prompts in common with a share (part)."""
        first, last = repartition.ordinal_range(index, parts=size, batch_size=self.batch_size)
        prompts = np.arange(first, last)
        return tuple(np.unique(prompts * other_size // self.batch_size).tolist())

    def _is_empty(self, share: int) -> bool:
        first, last = repartition.ordinal_range(share, parts=self.num_shares, batch_size=self.batch_size)
        return first >= last


def stage_routes(plan: Plan) -> dict[str, StageRoute]:
    """All edges of rows that go through data buffers, by name."""
    return {edge.name: StageRoute.of(plan, edge.name) for edge in plan.edges if edge.transport == "Buffer"}


def by_host(route: StageRoute, parts: Iterable[int]) -> dict[Host, tuple[int, ...]]:
    """Parts by the host they are put on."""
    result: dict[Host, tuple[int, ...]] = {}
    for part in parts:
        host = route.producer_host(part)
        result[host] = (*result.get(host, ()), part)
    return result
