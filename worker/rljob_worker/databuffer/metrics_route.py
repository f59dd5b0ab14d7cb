"""The built-in edge from every worker of the job to the lead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_api.planning.plan import GroupPlan
from rljob_api.vocabulary.keys import EDGE_METRICS
from rljob_worker.databuffer.hosts import Host, Worker

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MetricsRoute:
    """One row of every worker of the job to the lead; part and row id are the worker's ordinal over all groups."""

    groups: tuple[GroupPlan, ...]
    lead: Worker
    lead_host: Host
    name: str = EDGE_METRICS
    stage: str = EDGE_METRICS
    columns: tuple[str, ...] | None = None
    needs_layouts: bool = False
    num_shares: int = 1
    participants: tuple[Host, ...] = ()
    num_producer_hosts: int = 0

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

    def sources(self, share: int) -> list[int]:
        return list(range(self.num_parts))

    def shares_fed_by(self, part: int) -> list[int]:
        return [0]

    def assign(self, step: int, row_ids: Int64, group_ids: Int64, num_tokens: Int64) -> Int64:
        return np.zeros(len(row_ids), np.int64)
