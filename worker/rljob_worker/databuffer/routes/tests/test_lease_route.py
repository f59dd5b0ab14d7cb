"""Who leases what to whom: the ring of owners, and copies that ask through their leaders."""

import pytest

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.routes.lease_route import LeaseRoute, lease_routes, outcomes_topic
from rljob_worker.databuffer.tests.gang import group, plan_of, stage

OWNERS = (Host("train", 0), Host("train", 1))


def route(hosts, workers, mesh, num_owners=2):
    sample = generating("Sample", mesh)
    plan = plan_of([group("rollout", hosts, workers, ["sample"]), group("train", num_owners, 1, [])], [sample], {})
    return LeaseRoute.of(plan, "sample")


def generating(run, mesh, *, scatters_rows=True):
    return stage("sample", "rollout", mesh).model_copy(update={"run": run, "scatters_rows": scatters_rows})


def test_a_generator_asks_at_home_and_then_once_round_the_owners():
    result = route(3, 1, Mesh(dp=3))
    assert result.owners == OWNERS and result.num_generators == 3
    assert [result.owner(generator, 0) for generator in range(3)] == [OWNERS[0], OWNERS[1], OWNERS[0]]
    assert [result.owner(1, hops) for hops in range(2)] == [OWNERS[1], OWNERS[0]]


def test_a_copy_is_one_generator_and_its_leader_asks():
    # 2 hosts of 4 workers, 2 to a copy: copies 0 1 and 2 3, led by ranks 0 2 and 4 6
    result = route(2, 4, Mesh(dp=4, tp=2))
    asked = [result.generator_of(WorkerId("rollout", rank)) for rank in range(8)]
    assert asked == [0, None, 1, None, 2, None, 3, None]
    assert result.generator_of(WorkerId("train", 0)) is None
    assert result.leader(3) == WorkerId("rollout", 6) and result.host_of(3) == Host("rollout", 1)
    assert result.generating_hosts == (Host("rollout", 0), Host("rollout", 1))


def test_rounds_count_on_from_step_to_step():
    result = route(1, 1, Mesh())
    keys = [result.round_key(step, number) for step in (3, 4) for number in range(result.rounds_per_step)]
    assert keys == list(range(keys[0], keys[0] + len(keys)))
    with pytest.raises(AssertionError):
        result.round_key(3, result.rounds_per_step)


@pytest.mark.parametrize(("run", "has_outcomes"), [("Sample", True), ("Rollout", False)])
def test_stages_that_generate_where_nothing_is_trained_are_leased(run, has_outcomes):
    sample = generating(run, Mesh())
    groups = [group("rollout", 1, 1, ["sample"]), group("train", 1, 1, [])]
    (result,) = lease_routes(plan_of(groups, [sample], {}, weights=("train", "rollout"))).values()
    assert (result.stage, result.has_outcomes) == ("sample", has_outcomes)
    assert result.rounds_per_step == (10 if has_outcomes else 1)
    assert not lease_routes(plan_of(groups, [sample], {}, weights=("rollout", "train")))
    assert not lease_routes(plan_of(groups, [generating("Rollout", Mesh(), scatters_rows=False)], {}))
    assert not lease_routes(plan_of(groups, [generating("Reward", Mesh())], {}))
    assert outcomes_topic("sample") == "outcomes/sample"
