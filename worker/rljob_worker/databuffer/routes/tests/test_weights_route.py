"""Trees of weights: who gives whose chunks to whom, and where slots lie."""

from collections import Counter
from math import lcm, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.planning.plan import GroupPlan, Plan
from rljob_api.planning.weights.flows import WeightFlow
from rljob_worker.databuffer.protocol.worker_answers import WeightsOfWorker
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.routes.weights_route import WeightsRoute, WeightsRoutes
from rljob_worker.errors import InvalidJob
from rljob_worker.tests.documents import plan_of

EDGE = "weights/actor"
KI = 1024


def group(name: str, replicas: int, workers_per_host: int = 1) -> GroupPlan:
    return GroupPlan(
        name=name,
        replicas=replicas,
        workers_per_host=workers_per_host,
        device="cpu",
        backend="gloo",
        profile="cpu",
        schedule=(),
    )


def route(sources: tuple[int, int], *targets: tuple[int, int]) -> WeightsRoute:
    """Each (hosts, workers per host); target groups are t0, t1 ..."""
    groups = tuple(group(f"t{i}", *size) for i, size in enumerate(targets))
    return WeightsRoute.of(WeightFlow(EDGE, "actor", "DataBuffer", group("train", *sources), groups), 64 * KI)


def targets_of(route: WeightsRoute) -> list[Host]:
    return [Host(g.name, i) for g in route.targets for i in range(g.replicas)]


def plan(sources: tuple[int, int], targets: tuple[int, int], memory: str = "1Gi", staleness: int = 0) -> Plan:
    """`memory` may be less than planning asks for."""
    made = plan_of(
        groups=[("train", *sources), ("rollout", *targets)],
        data={"train": [{"path": "some/data"}], "batchSize": lcm(prod(sources), prod(targets))},
    )
    buffer = made.spec.data_buffer.model_copy(update={"memory": memory})
    rollout = made.spec.rollout.model_copy(update={"max_staleness": staleness})
    return made.model_copy(update={"spec": made.spec.model_copy(update={"data_buffer": buffer, "rollout": rollout})})


def test_the_trees_of_two_sources_over_five_hosts():
    # rotations 0 and 5 // 2 = 2: places 0 1 2 3 4 are hosts 0 1 2 3 4, and 2 3 4 0 1
    two = route((2, 1), (5, 1))
    first, second = two.sources

    def below(source, host):
        return [child.index for child in two.children(source, host)]

    assert [below(first, Host("t0", i)) for i in range(5)] == [[1, 2], [3, 4], [], [], []]
    assert [below(second, Host("t0", i)) for i in range(5)] == [[], [], [3, 4], [0, 1], []]
    assert below(first, Host("train", 0)) == [0] and below(second, Host("train", 1)) == [2]
    assert two.parent(second, Host("t0", 2)) == Host("train", 1)
    assert two.parent(second, Host("t0", 1)) == Host("t0", 3)
    assert two.parent(second, Host("train", 1)) is None


@given(
    sources=st.tuples(st.integers(1, 5), st.integers(1, 8)),
    targets=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 2)), min_size=1, max_size=3),
)
def test_every_host_is_once_in_every_tree_and_no_host_passes_on_all_of_them(sources, targets):
    some = route(sources, *targets)
    hosts = targets_of(some)
    inner: Counter[Host] = Counter()
    for source in some.sources:
        reached, edge = [], some.children(source, source.host)
        assert len(edge) == 1  # a source sends its part once
        while edge:
            reached += edge
            for host in edge:
                assert len(some.children(source, host)) <= 2
                assert all(some.parent(source, child) == host for child in some.children(source, host))
            inner.update(host for host in edge if some.children(source, host))
            edge = [child for host in edge for child in some.children(source, host)]
        assert sorted(reached) == sorted(hosts)
    if len(some.sources) > 1:
        assert all(count < len(some.sources) for count in inner.values())


@pytest.mark.parametrize(
    ("sources", "ranks"),
    [
        ((1, 1), [0]),
        ((3, 2), [0, 1, 2, 3, 4, 5]),
        ((4, 8), list(range(0, 32, 2))),  # four of each host's eight
        ((3, 7), [0, 1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19]),  # i * 21 // 16
    ],
)
def test_sources_are_at_most_sixteen_and_spread_over_hosts(sources, ranks):
    some = route(sources, (1, 1))
    assert [source.worker.rank for source in some.sources] == ranks
    assert [source.number for source in some.sources] == list(range(len(ranks)))
    assert all(source.host == Host("train", source.worker.rank // sources[1]) for source in some.sources)


def test_who_reads_and_whose_chunks_pass_through():
    some = route((2, 2), (2, 3), (1, 2))
    assert some.readers(Host("t0", 1)) == [3, 4, 5]
    assert some.readers(Host("t1", 0)) == [0, 1]
    assert some.readers(Host("train", 0)) == []
    assert [source.number for source in some.sources_through(Host("train", 1))] == [2, 3]
    assert [source.number for source in some.sources_through(Host("t1", 0))] == [0, 1, 2, 3]
    assert some.sources_through(Host("other", 0)) == []
    assert some.source_of(WorkerId("train", 3)) == some.sources[3]
    assert some.source_of(WorkerId("t0", 3)) is None


def test_slots_lie_side_by_side_and_never_in_each_other():
    routes = WeightsRoutes.of(plan((2, 2), (3, 1), "8Mi"))
    size = routes.by_edge[EDGE].slot_bytes
    slots = routes.slots(Host("rollout", 1), 4096)
    assert list(slots) == [(EDGE, number) for number in range(4)]
    assert sorted(offset for slot in slots.values() for offset in slot) == [4096 + i * size for i in range(16)]
    assert routes.num_bytes(Host("rollout", 1)) == 16 * size
    # a training host keeps slots for its own two sources only, with all of the 4 MiB that are for weights: 8 each
    assert list(routes.slots(Host("train", 1))) == [(EDGE, 2), (EDGE, 3)]
    assert routes.slots(Host("train", 1))[EDGE, 3] == [i * size for i in range(8, 16)]
    assert routes.num_bytes(Host("train", 1)) == 16 * size


def test_with_several_versions_at_once_hosts_that_receive_have_slots_for_them_too():
    # 1 source: 4 slots of 512 KiB are the 2 MiB for weights, or 16 of 128 KiB, 4 for each of four versions; of 128 MiB
    # 4 of 32 MiB, or 16 of 8 MiB
    assert [
        len(WeightsRoutes.of(plan((1, 1), (2, 1), "4Mi", s)).slots(Host("rollout", 0))[EDGE, 0]) for s in (0, 1)
    ] == [4, 16]
    one, several = (WeightsRoutes.of(plan((1, 1), (2, 1), "1Gi", s)) for s in (0, 1))
    assert (one.by_edge[EDGE].num_versions, several.by_edge[EDGE].num_versions) == (1, 4)
    assert [len(item.slots(Host("rollout", 0))[EDGE, 0]) for item in (one, several)] == [4, 16]
    assert [len(item.slots(Host("train", 0))[EDGE, 0]) for item in (one, several)] == [4, 16]


def test_what_a_worker_must_know():
    routes = WeightsRoutes.of(plan((1, 2), (1, 2)))
    size = routes.by_edge[EDGE].slot_bytes
    source = WeightsOfWorker(source=1, receives=False, slot_bytes=size)
    assert routes.of_worker(WorkerId("train", 1), Host("train", 0)) == {EDGE: source}
    reader = WeightsOfWorker(source=None, receives=True, slot_bytes=size)
    assert routes.of_worker(WorkerId("rollout", 1), Host("rollout", 0)) == {EDGE: reader}
    assert routes.of_worker(WorkerId("other", 0), Host("other", 0)) == {}


def test_a_plan_whose_weights_stay_in_their_workers_has_no_routes():
    routes = WeightsRoutes.of(plan_of())
    assert routes.by_edge == {} and routes.num_bytes(Host("workers", 0)) == 0


def test_memory_without_room_for_the_slots_is_refused_with_the_size_it_needs():
    # 1 source x 4 slots x 64 KiB, twice
    with pytest.raises(InvalidJob, match=r"dataBuffer\.memory is 511Ki, too small .* write at least 512\.0 KiB"):
        WeightsRoutes.of(plan((1, 1), (1, 1), "511Ki"))
