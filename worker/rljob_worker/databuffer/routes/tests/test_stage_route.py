"""One edge: who puts, who gets, on which hosts, and that both ends compute the same from the Plan."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.batch.row_index import RowIndex
from rljob_worker.databuffer.routes.assignment import Assignment, ProducerLayout
from rljob_worker.databuffer.routes.hosts import Host, Members, WorkerId
from rljob_worker.databuffer.routes.stage_route import StageRoute, by_host, stage_routes
from rljob_worker.databuffer.tests.gang import group, plan_of, stage, two_stages

EDGE = "a->b"

sizes = st.tuples(st.integers(1, 4), st.integers(1, 4))
"""Hosts, workers per host."""


def route_of(*args, **options):
    return StageRoute.of(two_stages(*args, **options), EDGE)


def rollout(*indices):
    return tuple(Host("rollout", index) for index in indices)


def train(*indices):
    return tuple(Host("train", index) for index in indices)


def index_of(group_ids):
    """As many rows as group ids; one token each."""
    ids = np.array(group_ids, np.int64)
    return RowIndex(np.arange(len(ids)), ids, np.ones(len(ids), np.int64))


# ---- what the Plan says


def test_a_route_is_its_edge_of_the_plan():
    plan = two_stages((2, 4), (1, 2), batch_size=16, mini_batch_rows=8, columns=("ids", "text"))
    route = StageRoute.of(plan, EDGE)
    assert (route.name, route.columns) == (EDGE, ("ids", "text"))
    assert (route.producer_stage, route.consumer_stage) == (plan.stage("a"), plan.stage("b"))
    assert route.producers == Members("rollout", 8, 4, 1) and route.consumers == Members("train", 2, 2, 1)
    assert (route.num_parts, route.num_shares) == (8, 2)
    assert (route.batch_size, route.num_mini_batches, route.seed) == (16, 4, plan.spec.seed)  # 32 rows, 8 at a time


def test_levels_are_places_in_the_schedules():
    plan = plan_of(
        [group("rollout", 1, 1, ["other", "a"]), group("train", 1, 1, ["other", "another", "b"])],
        [stage("a", "rollout", Mesh()), stage("b", "train", Mesh())],
        {EDGE: ["ids"]},
    )
    route = StageRoute.of(plan, EDGE)
    assert (route.producer_level, route.consumer_level) == (1, 2)


def test_producers_end_a_step_together_where_their_group_trains_or_consumes():
    assert not route_of().in_step
    assert StageRoute.of(two_stages(weights=("rollout", "train")), EDGE).in_step
    assert not StageRoute.of(two_stages(weights=("train", "train")), EDGE).in_step
    frozen = two_stages(weights=("rollout", "train"))
    engines = tuple(engine.model_copy(update={"trainable": False}) for engine in frozen.engines)
    assert not StageRoute.of(frozen.model_copy(update={"engines": engines}), EDGE).in_step
    same = [stage("a", "train", Mesh(dp=2)), stage("b", "train", Mesh(dp=2))]
    assert StageRoute.of(plan_of([group("train", 1, 2, ["a", "b"])], same, {EDGE: ["ids"]}), EDGE).in_step


def test_rows_of_edges_that_do_not_go_through_data_buffers_have_no_route():
    plan = plan_of(
        [group("train", 1, 2, ["a", "b", "c"])],
        [stage(name, "train", Mesh(dp=2)) for name in "abc"],
        {EDGE: ["ids"], "b->c": ["ids"]},
    )
    assert stage_routes(plan) == {name: StageRoute.of(plan, name) for name in (EDGE, "b->c")}
    edges = tuple(
        edge.model_copy(update={"transport": "Buffer" if edge.name == EDGE else "Local"}) for edge in plan.edges
    )
    assert list(stage_routes(plan.model_copy(update={"edges": edges}))) == [EDGE]


@pytest.mark.parametrize(
    ("options", "scatters", "needed"),
    [
        ({}, False, False),
        ({"balance": "Tokens"}, False, True),
        ({"producer_balance": "Tokens"}, False, True),
        ({}, True, True),
    ],
)
def test_layouts_are_needed_where_rows_do_not_lie_by_number(options, scatters, needed):
    plan = two_stages(**options)
    a, b = plan.stages
    plan = plan.model_copy(update={"stages": (a.model_copy(update={"scatters_rows": scatters}), b)})
    assert StageRoute.of(plan, EDGE).needs_layouts == needed


def test_a_consumer_on_our_hosts_after_us_is_later():
    def route(groups):
        stages = [stage(name, where, Mesh()) for where, names in groups.items() for name in names]
        plan = plan_of([group(where, 1, 1, names) for where, names in groups.items()], stages, {"a->b": [], "c->d": []})
        return StageRoute.of(plan, "a->b"), StageRoute.of(plan, "c->d")

    ours, other = route({"train": ["c", "a", "d", "b"]})
    assert ours.is_later(other)
    assert ours.is_later(ours)
    ours, other = route({"train": ["c", "d", "a", "b"]})
    assert not ours.is_later(other)
    ours, other = route({"train": ["a", "b"], "rollout": ["c", "d"]})
    assert not ours.is_later(other)


def test_what_the_producing_stage_itself_reads_is_not_later():
    plan = plan_of(
        [group("train", 1, 1, ["c", "a"]), group("rollout", 1, 1, ["b"])],
        [stage("a", "train", Mesh()), stage("b", "rollout", Mesh()), stage("c", "train", Mesh())],
        {"a->b": [], "c->a": []},
    )
    assert not StageRoute.of(plan, "a->b").is_later(StageRoute.of(plan, "c->a"))


# ---- who


def test_tensor_parallel_peers_share_and_only_leaders_put():
    plan = plan_of(
        [group("rollout", 2, 4, ["a"]), group("train", 1, 4, ["b"])],
        [stage("a", "rollout", Mesh(dp=4, tp=2)), stage("b", "train", Mesh(dp=2, tp=2))],
        {EDGE: ["ids"]},
    )
    route = StageRoute.of(plan, EDGE)
    assert [route.part_of(WorkerId("rollout", rank)) for rank in range(8)] == [0, None, 1, None, 2, None, 3, None]
    assert route.part_of(WorkerId("train", 0)) is None and route.share_of(WorkerId("rollout", 0)) is None
    assert route.producer(3) == WorkerId("rollout", 6) and route.producer_host(3) == Host("rollout", 1)
    assert [route.share_of(WorkerId("train", rank)) for rank in range(4)] == [0, 0, 1, 1]
    assert route.readers(Host("train", 0), 1) == [2, 3]
    assert route.parts_on(Host("rollout", 0)) == (0, 1) and route.parts_on(Host("rollout", 1)) == (2, 3)
    assert route.parts_on(Host("train", 0)) == ()


def test_workers_beyond_the_last_copy_neither_put_nor_get():
    plan = plan_of(
        [group("rollout", 2, 3, ["a"]), group("train", 2, 3, ["b"])],
        [stage("a", "rollout", Mesh(dp=1, tp=4)), stage("b", "train", Mesh(dp=1, tp=4))],
        {EDGE: ["ids"]},
    )
    route = StageRoute.of(plan, EDGE)
    assert [route.part_of(WorkerId("rollout", rank)) for rank in range(6)] == [0, None, None, None, None, None]
    assert [route.share_of(WorkerId("train", rank)) for rank in range(6)] == [0, 0, 0, 0, None, None]
    assert route.parts_on(Host("rollout", 0)) == (0,) and route.parts_on(Host("rollout", 1)) == ()


def test_a_part_lies_on_the_host_of_its_leader_wherever_its_copy_spans():
    # copies of 4 ranks on hosts of 3: leaders are ranks 0, 4 and 8, on hosts 0, 1 and 2
    plan = plan_of(
        [group("rollout", 4, 3, ["a"]), group("train", 1, 1, ["b"])],
        [stage("a", "rollout", Mesh(dp=3, tp=4)), stage("b", "train", Mesh())],
        {EDGE: ["ids"]},
    )
    route = StageRoute.of(plan, EDGE)
    assert [route.parts_on(host) for host in rollout(0, 1, 2, 3)] == [(0,), (1,), (2,), ()]
    assert route.producer_hosts == rollout(0, 1, 2)
    assert route.hosts == rollout(0, 1, 2) + train(0)


def test_a_share_that_spans_hosts_is_fetched_by_each_of_them():
    route = route_of((1, 1), (2, 2), tp=4)
    assert tuple(route.consumer_hosts(0)) == train(0, 1)
    assert route.readers(Host("train", 1), 0) == [2, 3]
    assert route.hosts == rollout(0) + train(0, 1)


@pytest.mark.parametrize(
    ("hosts", "workers", "dp", "tp", "expected"),
    [
        (2, 4, 4, 2, [(0, 1), (2, 3)]),
        (4, 3, 3, 4, [(0,), (0, 1), (1, 2), (2,)]),  # copies 0-3, 4-7, 8-11 on hosts 0-2, 3-5, 6-8, 9-11
        (3, 2, 1, 4, [(0,), (0,), ()]),  # ranks 4 and 5 are of no copy
    ],
)
def test_the_shares_that_a_host_reads(hosts, workers, dp, tp, expected):
    plan = plan_of(
        [group("rollout", 1, 1, ["a"]), group("train", hosts, workers, ["b"])],
        [stage("a", "rollout", Mesh()), stage("b", "train", Mesh(dp=dp, tp=tp))],
        {EDGE: ["ids"]},
    )
    route = StageRoute.of(plan, EDGE)
    assert [route.shares_on(host) for host in train(*range(hosts))] == expected
    assert route.shares_on(Host("rollout", 0)) == ()
    for host, shares in zip(train(*range(hosts)), expected, strict=True):
        assert shares == tuple(share for share in range(route.num_shares) if route.readers(host, share))


def test_hosts_at_both_ends_are_there_once():
    plan = plan_of(
        [group("train", 2, 2, ["a", "b"])],
        [stage("a", "train", Mesh(dp=4)), stage("b", "train", Mesh(dp=4))],
        {EDGE: ["ids"]},
    )
    route = StageRoute.of(plan, EDGE)
    assert route.producer_hosts == route.hosts == train(0, 1)


@given(sizes, st.integers(1, 5))
def test_every_part_is_on_the_one_host_of_its_producer(made, tp):
    hosts, workers = made
    tp = min(tp, hosts * workers)
    plan = plan_of(
        [group("rollout", hosts, workers, ["a"]), group("train", 1, 1, ["b"])],
        [stage("a", "rollout", Mesh(dp=hosts * workers // tp, tp=tp)), stage("b", "train", Mesh())],
        {EDGE: ["ids"]},
    )
    route = StageRoute.of(plan, EDGE)
    on = {host: route.parts_on(host) for host in rollout(*range(hosts))}
    assert [part for parts in on.values() for part in parts] == list(range(route.num_parts))
    assert {part: host for host, parts in on.items() for part in parts} == {
        part: route.producer_host(part) for part in range(route.num_parts)
    }
    assert by_host(route, range(route.num_parts)) == {host: parts for host, parts in on.items() if parts}


def test_parts_by_host_stay_in_their_order():
    route = route_of((2, 2), (1, 1))
    assert by_host(route, [3, 0, 1]) == {Host("rollout", 1): (3,), Host("rollout", 0): (0, 1)}
    assert by_host(route, []) == {}


def test_routes_of_a_large_job_are_small_and_know_their_hosts():
    plan = two_stages((512, 8), (512, 8), batch_size=4096, balance="Tokens")
    assert len(json.dumps(plan.to_json())) < 2**20
    route = stage_routes(plan)[EDGE]
    assert len(route.hosts) == 1024 and len(route.producer_hosts) == 512
    assert route.parts_on(Host("rollout", 511)) == tuple(range(4088, 4096))


# ---- what, without layouts


def test_parts_and_shares_by_number():
    # 8 prompts: parts of 2, shares of 4
    route = route_of((1, 4), (1, 2), batch_size=8)
    assert [route.parts_of(share, None) for share in range(2)] == [(0, 1), (2, 3)]
    assert [route.shares_fed_by(part, None) for part in range(4)] == [(0,), (0,), (1,), (1,)]
    # parts of 3 + 3 + 2 prompts, shares of 4
    route = route_of((1, 3), (1, 2), batch_size=8)
    assert [route.parts_of(share, None) for share in range(2)] == [(0, 1), (1, 2)]
    assert [route.shares_fed_by(part, None) for part in range(3)] == [(0,), (0, 1), (1,)]


def test_a_share_without_a_prompt_is_fed_by_part_0():
    # 2 prompts: share 0 has the first, share 2 the second of 4
    route = route_of((1, 2), (1, 4), batch_size=2)
    assert [route.parts_of(share, None) for share in range(4)] == [(0,), (0,), (1,), (0,)]
    assert [route.shares_fed_by(part, None) for part in range(2)] == [(0, 1, 3), (2,)]
    # part 1 has none either
    route = route_of((1, 3), (1, 1), batch_size=2)
    assert route.parts_of(0, None) == (0, 1) and route.shares_fed_by(2, None) == ()


@settings(max_examples=60)
@given(sizes, sizes, st.integers(1, 24))
def test_both_ends_agree_and_every_row_is_covered(made, used, batch_size):
    route = route_of(made, used, batch_size=batch_size)
    groups = np.arange(batch_size)
    parts = groups * route.num_parts // batch_size
    shares = route.assign(1, ProducerLayout(parts, index_of(groups)))
    for share in range(route.num_shares):
        feeding = tuple(part for part in range(route.num_parts) if share in route.shares_fed_by(part, None))
        assert route.parts_of(share, None) == feeding
        assert set(parts[shares == share].tolist()) <= set(feeding)


def test_rows_of_a_step_have_its_numbers():
    """With 4 groups of 3 rows per step, those of step 2 are 4 to 7, and their rows 12 to 23."""
    route = route_of((1, 2), (1, 2), batch_size=4, group_size=3)

    def is_of_step_2(row_id, group_id):
        return route.is_of_step(2, RowIndex(np.array([12, row_id]), np.array([4, group_id]), np.ones(2, np.int64)))

    assert is_of_step_2(14, 4) and is_of_step_2(23, 7)
    assert route.is_of_step(2, index_of([]))
    for row_id, group_id in ((9, 3), (24, 8), (15, 4), (14, 5), (-1, 4), (12, -1 << 63), ((1 << 63) - 1, 7)):
        assert not is_of_step_2(row_id, group_id)


@given(sizes, sizes, st.integers(1, 24))
def test_a_host_may_send_what_is_of_its_parts_and_of_the_share(made, used, batch_size):
    route = route_of(made, used, batch_size=batch_size)
    for ordinal in range(batch_size):
        part, share = ordinal * route.num_parts // batch_size, ordinal * route.num_shares // batch_size
        for host in route.producer_hosts:
            for to in range(route.num_shares):
                allowed = route.may_send(host, to, index_of([ordinal]))
                assert allowed == (host == route.producer_host(part) and to == share)


# ---- what, with layouts


def test_with_layouts_the_assignment_says_who_feeds_whom():
    route = route_of((1, 2), (1, 2), balance="Tokens")
    layout = ProducerLayout(np.array([0, 1]), index_of([0, 1]))
    assignment = Assignment(layout, np.array([1, 1]), 2)
    assert [route.parts_of(share, assignment) for share in range(2)] == [(0,), (0, 1)]
    assert [route.shares_fed_by(part, assignment) for part in range(2)] == [(0, 1), (1,)]


def test_rows_that_lie_anywhere_are_dealt_out_by_number():
    plan = plan_of(
        [group("train", 1, 2, ["a", "b"])],
        [stage("a", "train", Mesh(dp=2)).model_copy(update={"scatters_rows": True}), stage("b", "train", Mesh(dp=2))],
        {EDGE: ["ids"]},
        batch_size=4,
    )
    route = StageRoute.of(plan, EDGE)
    # rank 1 of the sampling made groups 0, 1 and 3; all the same the first half goes to rank 0
    layout = ProducerLayout.merge(
        [ProducerLayout.of_part(0, index_of([2])), ProducerLayout.of_part(1, index_of([0, 1, 3]))]
    )
    assignment = Assignment(layout, route.assign(1, layout), 2)
    assert assignment.shares.tolist() == [1, 0, 0, 1]
    assert route.parts_of(0, assignment) == (1,) and route.parts_of(1, assignment) == (0, 1)
