"""Whole jobs in one thread: in any order of events, every chunk comes once to everyone, and all slots end free."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.weights.tests.network import (
    EDGE,
    Network,
    Receiver,
    Sender,
    contents,
    hosts_of,
    routes_of,
    run,
)


def receivers(network: Network, versions) -> list[Receiver]:
    route = network.routes.by_edge[EDGE]
    return [
        Receiver(network, rank, host, versions(host, rank))
        for host in hosts_of(network.routes)
        for rank in route.readers(host)
    ]


def release_all(senders: list[Sender], newest: int) -> None:
    for sender in senders:
        for version in range(newest + 1):
            sender.release(version)


def check(network: Network, readers: list[Receiver], sizes: dict[int, list[int]]) -> None:
    """sizes: chunks of each source, by version."""
    for reader in readers:
        for version, had in reader.had.items():
            assert len(set(had)) == len(had)
            if version in reader.completed:
                sent = {contents(source, version, i) for source, n in enumerate(sizes[version]) for i in range(n)}
                assert set(had) == sent and reader.completed[version] == len(sent)
    assert [network.num_held(host) for host in network.buffers] == [0] * len(network.buffers)


ANY_JOB = given(
    sources=st.sampled_from([(1, 1), (1, 2), (2, 1), (1, 3)]),
    targets=st.sampled_from([(1, 1), (2, 1), (3, 2), (7, 1)]),
    sizes=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=3),
    faults=st.tuples(st.floats(0, 0.4), st.floats(0, 0.4)),
    random=st.randoms(use_true_random=False),
    data=st.data(),
)


@settings(max_examples=20)
@ANY_JOB
def test_any_order_of_events_with_breaks_damage_skips_and_slow_readers(sources, targets, sizes, faults, random, data):
    come_whole(sources, targets, sizes, faults, random, data)


@pytest.mark.slow
@settings(max_examples=200)
@ANY_JOB
def test_any_order_of_events_in_a_long_search(sources, targets, sizes, faults, random, data):
    come_whole(sources, targets, sizes, faults, random, data)


def come_whole(sources, targets, sizes, faults, random, data):
    network = Network(routes_of(sources, targets), random, *faults)
    num_sources = sources[0] * sources[1]
    by_version = {version: item[:num_sources] for version, item in enumerate(sizes, 1)}
    plans = st.lists(st.sampled_from([None, None, 0, 1, 4]), min_size=len(sizes), max_size=len(sizes))

    def versions(host: Host, rank: int) -> list[tuple[int, int | None]]:
        """None reads all, 0 skips, a number reads that many and skips the rest; some leave versions out in silence."""
        patience = list(zip(by_version, data.draw(plans), strict=True))
        silent = data.draw(st.integers(0, len(patience) - 1))
        return patience[silent:]

    readers = receivers(network, versions)
    for reader in readers:  # a version that has fewer chunks than a reader has patience for is read to its end
        reader.versions = [(v, None if p is not None and p > sum(by_version[v]) else p) for v, p in reader.versions]
    senders = [Sender(network, n, [(v, item[n]) for v, item in by_version.items()]) for n in range(num_sources)]
    run(network, [*senders, *readers])
    release_all(senders, len(sizes))
    check(network, readers, by_version)


@pytest.mark.parametrize(
    ("sources", "targets"),
    [
        ((2, 8), (1, 1)),
        ((2, 8), (2, 1)),
        ((4, 4), (7, 1)),
        ((1, 1), (33, 1)),
        pytest.param((2, 4), (33, 1), marks=pytest.mark.slow),
    ],
)
def test_one_to_sixteen_sources_and_up_to_33_hosts(sources, targets):
    network = Network(routes_of(sources, targets, "8Mi"), Random(1), 0.1, 0.1)
    num_sources = sources[0] * sources[1]
    sizes = {version: [6 + version] * num_sources for version in (1, 2)}
    readers = receivers(network, lambda host, rank: [(1, None), (2, None)])
    senders = [Sender(network, n, [(1, 7), (2, 8)]) for n in range(num_sources)]
    run(network, [*senders, *readers])
    release_all(senders, 2)
    check(network, readers, sizes)
    assert all(set(reader.completed) == {1, 2} for reader in readers)


@settings(max_examples=5)
@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    targets=st.sampled_from([(1, 2), (3, 1), (7, 1)]),
    faults=st.tuples(st.floats(0, 0.3), st.floats(0, 0.3)),
    random=st.randoms(use_true_random=False),
)
def test_sources_send_as_many_versions_as_the_plan_has_before_anybody_reads(sizes, targets, faults, random):
    # staleness 1: four versions of four chunks at most, and an eighth of 2 GiB is 16 slots of 16 MiB for one source
    network = Network(routes_of((2, 1), targets, "2Gi", 1), random, *faults)
    senders = [Sender(network, n, list(enumerate(sizes, 1))) for n in range(2)]
    for sender in senders:
        while not sender.is_done:
            assert sender.act()  # it never waits, though not one message has arrived
    readers = receivers(network, lambda host, rank: [(version, None) for version in range(1, len(sizes) + 1)])
    run(network, readers)
    by_version = {version: [size, size] for version, size in enumerate(sizes, 1)}
    release_all(senders, len(sizes))
    assert all(set(reader.completed) == set(by_version) for reader in readers)
    roots = {sender.host for sender in senders}
    assert all(network.num_held(host) == 0 for host in roots)
    for reader in readers:
        for version, had in reader.had.items():
            assert len(had) == len(set(had)) == sum(by_version[version])


@settings(max_examples=5)
@given(random=st.randoms(use_true_random=False), faults=st.tuples(st.floats(0, 0.3), st.floats(0, 0.3)))
def test_a_host_that_comes_late_reads_a_version_that_everybody_else_has_had(random, faults):
    """It hears of nothing before version 3, and reads 2 and 3."""
    network = Network(routes_of((1, 2), (3, 1), "2Gi", 1), random, *faults)
    senders = [Sender(network, n, [(1, 2), (2, 3), (3, 3)]) for n in range(2)]
    late = Host("rollout", 2)
    network.absent = {(late, 0): 3, (late, 1): 3}
    readers = receivers(network, lambda host, rank: [(2, None), (3, None)])
    run(network, [*senders, *[reader for reader in readers if reader.host != late]])
    run(network, readers)
    by_version = {1: [2, 2], 2: [3, 3], 3: [3, 3]}
    release_all(senders, 3)
    assert all(set(reader.completed) == {2, 3} for reader in readers)
    assert {number for reader, _, ticket in network.tickets if reader == late for number in [ticket.version]} == {2, 3}
    for reader in readers:
        assert all(len(had) == sum(by_version[version]) for version, had in reader.had.items())
