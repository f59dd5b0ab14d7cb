"""Leases of a job whose generators come and go: which there are, who owns them, who asks first. Pure arithmetic.

A lease is a part of one step of one generating stage. The batch is shared out over the ranks of the lead's group, and
what a rank has is cut into leases of about `rollout.leaseRows` rows, whole groups, before anybody takes them:

    8 groups of 4 rows, 2 ranks, leases of 8 rows     rank 0: groups 0 1 | 2 3     rank 1: groups 4 5 | 6 7

So every host knows all leases of every step, and the rows of a lease are the same wherever it is generated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rljob_api.pipeline.buffer_capacity import LEASE_ROWS
from rljob_api.planning.plan import GroupPlan, Plan
from rljob_worker.databuffer.routes import repartition
from rljob_worker.databuffer.routes.hosts import Host, WorkerId

VALIDATION_PIECES: Final = "validation pieces"
"""What stands for a stage in leases of a validation, of which only a report comes; no stage's name has a blank."""
PING_SECONDS = 2.0
PINGED_HOSTS = 128
"""A host that is silent is called every PING_SECONDS while an elastic group has so many at most; of more, as much more
seldom: what a host of the lead spends on that is bounded."""


@dataclass(frozen=True, slots=True, order=True)
class LeaseId:
    """One lease; in the order in which they are given."""

    step: int
    """The step to generate; of a piece of a validation, the training step that is validated, from 0."""
    index: int
    """Number among the leases of its rank."""
    rank: int
    """Rank of the lead's group that gets the rows."""
    stage: str

    def __str__(self) -> str:
        return f"lease {self.index} of rank {self.rank}, {self.stage}, step {self.step}"


@dataclass(frozen=True, slots=True)
class GuestRoute:
    """Leases of all stages that an elastic group generates."""

    group: str
    num_guests: int
    """Most hosts of the elastic group."""
    generators_per_guest: int
    """Copies of the generating model on each, which take leases by themselves."""
    owners: tuple[Host, ...]
    """Hosts of the lead's group."""
    ranks_per_owner: int
    stages: tuple[str, ...]
    """Those that read prompts."""
    batch_size: int
    lease_groups: int
    """Groups of a lease at most."""
    pieces_per_rank: int = 0
    """Leases of a rank in every validation; 0 in a job without."""

    @staticmethod
    def of(plan: Plan) -> GuestRoute | None:
        """None in a job without an elastic group."""
        group = plan.elastic_group
        if group is None:
            return None
        lead = plan.group(plan.lead_group)
        stages = tuple(stage for stage in plan.stages if stage.generated_in == group.name and not stage.after)
        lease_rows = plan.spec.rollout.lease_rows or LEASE_ROWS
        most_generators = group.replicas * generators_per_guest(plan, group)
        return GuestRoute(
            group=group.name,
            num_guests=group.replicas,
            generators_per_guest=generators_per_guest(plan, group),
            owners=tuple(Host(lead.name, index) for index in range(lead.replicas)),
            ranks_per_owner=lead.workers_per_host,
            stages=tuple(stage.name for stage in stages),
            batch_size=plan.spec.data.batch_size,
            lease_groups=max(1, lease_rows // plan.spec.algorithm.group_size),
            pieces_per_rank=-(-most_generators // lead.num_workers) if plan.spec.validates else 0,
        )

    # ---- what

    @property
    def leased(self) -> tuple[str, ...]:
        """What leases are of."""
        return (*self.stages, *((VALIDATION_PIECES,) if self.pieces_per_rank else ()))

    @property
    def num_ranks(self) -> int:
        return len(self.owners) * self.ranks_per_owner

    @property
    def num_pieces(self) -> int:
        """Leases of every validation: as many as there may be generators, at least."""
        return self.num_ranks * self.pieces_per_rank

    def num_leases(self, stage: str, rank: int) -> int:
        """Leases of a rank in every step of a stage, or in every validation."""
        if stage == VALIDATION_PIECES:
            return self.pieces_per_rank
        first, last = repartition.ordinal_range(rank, parts=self.num_ranks, batch_size=self.batch_size)
        return -(-(last - first) // self.lease_groups)

    def numbers(self, lease: LeaseId) -> range:
        """Draw numbers of a lease, or the number of a piece."""
        if lease.stage == VALIDATION_PIECES:
            piece = lease.rank * self.pieces_per_rank + lease.index
            return range(piece, piece + 1)
        first, last = repartition.ordinal_range(lease.rank, parts=self.num_ranks, batch_size=self.batch_size)
        parts, groups = self.num_leases(lease.stage, lease.rank), last - first
        begin, end = repartition.ordinal_range(lease.index, parts=parts, batch_size=groups)
        before = (lease.step - 1) * self.batch_size + first
        return range(before + begin, before + end)

    def is_lease(self, lease: LeaseId) -> bool:
        """Whether there is such a lease."""
        first_step = 0 if lease.stage == VALIDATION_PIECES else 1
        is_place = lease.step >= first_step and 0 <= lease.rank < self.num_ranks
        return is_place and lease.stage in self.leased and 0 <= lease.index < self.num_leases(lease.stage, lease.rank)

    # ---- who

    def ranks_of(self, owner: Host) -> range:
        """Ranks whose leases a host owns: those of its workers."""
        first = owner.index * self.ranks_per_owner
        return range(first, first + self.ranks_per_owner)

    def owner_of(self, lease: LeaseId) -> Host:
        return self.owners[lease.rank // self.ranks_per_owner]

    def leases_of(self, owner: Host, step: int) -> list[LeaseId]:
        """All leases of the rows of a step that a host owns, in the order in which they are given."""
        return sorted(lease for stage in self.stages for lease in self.leases_in(stage, owner, step))

    def leases_in(self, stage: str, owner: Host, step: int) -> list[LeaseId]:
        """Those of one stage, or of the validation of a step, in their order."""
        return sorted(
            LeaseId(step, index, rank, stage)
            for rank in self.ranks_of(owner)
            for index in range(self.num_leases(stage, rank))
        )

    def num_owned(self, stage: str, owner: Host) -> int:
        """How many those are; asked at every lease that comes, for which their list is too long."""
        return sum(self.num_leases(stage, rank) for rank in self.ranks_of(owner))

    def is_guest(self, host: Host) -> bool:
        return host.group == self.group

    def home(self, guest: Host) -> Host:
        """The owner that a guest asks first."""
        return self.owners[guest.index % len(self.owners)]

    def owner_after(self, owner: Host) -> Host:
        """The owner to which one passes on what it cannot answer; itself where it is the only one."""
        return self.owners[(owner.index + 1) % len(self.owners)]

    def generator_of(self, worker: WorkerId, num_workers: int) -> int | None:
        """Number of a copy on its guest, None for a worker that leads none. num_workers: of a guest."""
        copy, rest = divmod(worker.rank % num_workers, num_workers // self.generators_per_guest)
        return copy if rest == 0 else None

    @property
    def ping_seconds(self) -> float:
        """How long a host may be silent before it is called."""
        return PING_SECONDS * max(1.0, self.num_guests / PINGED_HOSTS)


def delivered_topic(stage: str) -> str:
    """Topic of the tree: that every owner has all leases of a step of a stage, or of a validation."""
    return f"delivered/{stage}"


def generators_per_guest(plan: Plan, group: GroupPlan) -> int:
    """Copies of the generating model on a host of an elastic group."""
    engine = next(engine for engine in plan.engines if engine.group == group.name and engine.kind == "Rollout")
    return group.workers_per_host // engine.mesh.ranks_per_copy


def longest_wait_seconds(plan: Plan) -> float:
    """How long a worker of the gang, or a guest, waits for others: also for guests that are still to come."""
    seconds = plan.spec.data_buffer.deadline_seconds
    return seconds if plan.elastic_group is None else seconds + plan.spec.rollout.generators_deadline_seconds
