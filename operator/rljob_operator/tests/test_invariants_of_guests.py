"""Whatever happens to a gang and its guests, in whatever order: what must always hold."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.v1alpha1.status import ENDED_PHASES
from rljob_operator.cluster.api import Object
from rljob_operator.cluster.kinds import POD, ResourceKind
from rljob_operator.tests.fake_queue import FakeQueue
from rljob_operator.tests.random_events import OPERATIONS, SPEC, is_over
from rljob_operator.tests.world import World

GROUPS = [{"name": "train"}, {"name": "rollout", "elastic": {"min": 1, "max": 3}}]
ELASTIC: dict[str, Any] = {
    **SPEC,
    "workerGroups": GROUPS,
    "rollout": {"maxResponseTokens": 32, "maxStaleness": 1},
    "generators": 2,
}
NAMES = sorted(
    OPERATIONS.keys() - {"stray_pod", "stray_service", "null_in_the_template", "recreate", "two_leaders", "relabel"}
)
STEPS = st.lists(st.tuples(st.sampled_from([*NAMES, "scale", "run_pods"]), st.integers(0, 29)), max_size=25)


class GuestWorld(World):
    """Counts pods that were made while another of the same host name may have run."""

    def __init__(self) -> None:
        super().__init__(select=lambda context: FakeQueue(), progress_interval_seconds=5.0)
        self.num_made_beside = 0
        create = self.cluster.create

        async def watched_create(kind: ResourceKind, namespace: str | None, body: Object) -> Object:
            if kind == POD:
                living = {pod["spec"].get("hostname") for pod in self.pods if not is_over(pod)}
                is_new = self.cluster.peek(POD, namespace, body["metadata"]["name"]) is None
                self.num_made_beside += is_new and body["spec"]["hostname"] in living
            return await create(kind, namespace, body)

        self.cluster.create = watched_create  # type: ignore[method-assign]

    def living(self, group: str) -> list[str]:
        own = (pod for pod in self.pods if f"-{group}-" in pod["metadata"]["name"] and not is_over(pod))
        return [pod["metadata"]["name"] for pod in own if "deletionTimestamp" not in pod["metadata"]]


@settings(max_examples=6)
@given(STEPS)
def test_invariants_of_guests(steps: list[tuple[str, int]]) -> None:
    world = GuestWorld()
    world.submit(**ELASTIC)
    begin = [("pass_time", 0), ("queue", 1), ("pass_time", 0), *3 * [("run_pods", 3)]]
    before = world.status
    for name, number in [*begin, *steps]:
        if name == "scale":
            world.edit(generators=1 + number % 3)
        else:
            OPERATIONS[name](world, number)
        world.settle()
        after = world.status
        guests = world.living("rollout")
        assert world.num_made_beside == 0, "two pods of one host name are alive together"
        assert len(guests) <= world.job["spec"]["generators"], "no more than are wanted"
        assert len(guests) == len({guest.split("-a")[0] for guest in guests}), "one pod for each number"
        assert all(f"-a{after.attempt}-" in guest for guest in guests), "guests go with their attempt"
        assert after.generators_lost >= before.generators_lost or after.attempt < before.attempt
        if after.phase in (*ENDED_PHASES, "Suspended", "Suspending", "Restarting", "Pending"):
            assert after.generators == 0 == after.generators_wanted, after.phase
            assert guests == [] or after.phase == "Suspending", after.phase  # until the gang, which needs rows, is gone
        before = after
