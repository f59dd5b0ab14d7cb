"""Who hands out what a generating stage draws, and who takes it: pure arithmetic that every host does alike."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.planning.plan import Plan
from rljob_worker.databuffer.routes.hosts import Host, Members, WorkerId


def outcomes_topic(stage: str) -> str:
    """Under what name it is gathered what became of the rounds of a stage."""
    return f"outcomes/{stage}"


@dataclass(frozen=True, slots=True)
class LeaseRoute:
    """One stage. A generator is a copy of its mesh, and asks through its leader; owners are the hosts of the lead's
    group."""

    stage: str
    generators: Members
    owners: tuple[Host, ...]
    rounds_per_step: int
    """At most."""
    has_outcomes: bool
    """Whether generators learn what became of a round; a Rollout that is not partial has one, of which every number is
    accepted."""

    @staticmethod
    def of(plan: Plan, stage_name: str) -> LeaseRoute:
        stage, lead = plan.stage(stage_name), plan.group(plan.lead_group)
        return LeaseRoute(
            stage=stage.name,
            generators=Members.of(plan.group(stage.group), stage.mesh),
            owners=tuple(Host(lead.name, index) for index in range(lead.replicas)),
            rounds_per_step=plan.most_rounds(stage),
            has_outcomes=plan.draws_in_rounds(stage),
        )

    @property
    def num_generators(self) -> int:
        return self.generators.num_copies

    def generator_of(self, worker: WorkerId) -> int | None:
        """None for a worker that leads no copy."""
        copy = self.generators.copy_of(worker)
        return copy if copy is not None and self.leader(copy) == worker else None

    def leader(self, generator: int) -> WorkerId:
        return WorkerId(self.generators.group, self.generators.ranks(generator)[0])

    def host_of(self, generator: int) -> Host:
        return self.generators.host(self.leader(generator).rank)

    @property
    def generating_hosts(self) -> tuple[Host, ...]:
        """Hosts with leaders, in order."""
        return tuple(dict.fromkeys(self.host_of(generator) for generator in range(self.num_generators)))

    def owner(self, generator: int, hops: int) -> Host:
        """The owner that a generator's request reaches after `hops` hops."""
        return self.owners[(generator + hops) % len(self.owners)]

    def round_key(self, step: int, number: int) -> int:
        """One number for a round of a step, which grows from each to the next: rounds are gathered like steps."""
        assert 0 <= number < self.rounds_per_step, f"round {number} of {self.rounds_per_step}"
        return step * self.rounds_per_step + number


def lease_routes(plan: Plan) -> dict[str, LeaseRoute]:
    """All stages whose workers take leases, by name."""
    return {stage.name: LeaseRoute.of(plan, stage.name) for stage in plan.stages if plan.is_leased(stage)}
