"""Where workers answer agents of other pods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rljob_api.catalogue.stages import STAGES
from rljob_api.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class EndpointPlace:
    """The endpoint of one worker."""

    group: str
    host: int
    port: int


def endpoint_places(plan: Plan) -> list[EndpointPlace]:
    """Those of all workers that lead a copy of a generating model; none in a job that serves no other pods."""
    return list(_places(plan)) if plan.spec.serves_pods else []


def _places(plan: Plan) -> Iterator[EndpointPlace]:
    conversation = plan.spec.rollout.conversation
    assert conversation is not None and conversation.endpoint.port is not None
    groups = {group.name: group for group in plan.gang}
    for stage in plan.stages:
        known = STAGES.get(stage.run)
        if known is None or known.use != "Generates" or stage.group not in groups:
            continue
        group = groups[stage.group]
        for rank in filter(stage.mesh.is_row_leader, range(group.num_workers)):
            host, place = divmod(rank, group.workers_per_host)
            yield EndpointPlace(group.name, host, conversation.endpoint.port + place)
