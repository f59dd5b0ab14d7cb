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


@settings(max_examples=40)
@ANY_JOB
def test_any_order_of_events_with_breaks_damage_skips_and_slow_readers(sources, targets, sizes, faults, random, data):
    come_whole(sources, targets, sizes, faults, random, data)


@pytest.mark.slow
@settings(max_examples=400)
@ANY_JOB
def test_any_order_of_events_in_a_long_search(sources, targets, sizes, faults, random, data):
    come_whole(sources, targets, sizes, faults, random, data)


def come_whole(sources, targets, sizes, faults, random, data):
    network = Network(routes_of(sources, targets), random, *faults)
    num_sources = sources[0] * sources[1]
    by_version = {version: each[:num_sources] for version, each in enumerate(sizes, 1)}
    plans = st.lists(st.sampled_from([None, None, 0, 1, 4]), min_size=len(sizes), max_size=len(sizes))

    def versions(host: Host, rank: int) -> list[tuple[int, int | None]]:
        """None reads all, 0 skips, a number reads that many and skips the rest; some leave versions out in silence."""
        patience = list(zip(by_version, data.draw(plans), strict=True))
        silent = data.draw(st.integers(0, len(patience) - 1))
        return patience[silent:]

    readers = receivers(network, versions)
    for reader in readers:  # a version that has fewer chunks than a reader has patience for is read to its end
        reader.versions = [(v, None if p is not None and p > sum(by_version[v]) else p) for v, p in reader.versions]
    senders = [Sender(network, n, [(v, each[n]) for v, each in by_version.items()]) for n in range(num_sources)]
    run(network, [*senders, *readers])
    check(network, readers, by_version)


@pytest.mark.parametrize(
    ("sources", "targets"), [((2, 8), (1, 1)), ((2, 8), (2, 1)), ((4, 4), (7, 1)), ((1, 1), (33, 1)), ((2, 4), (33, 1))]
)
def test_one_to_sixteen_sources_and_up_to_33_hosts(sources, targets):
    network = Network(routes_of(sources, targets, "8Mi"), Random(1), 0.1, 0.1)
    num_sources = sources[0] * sources[1]
    sizes = {version: [6 + version] * num_sources for version in (1, 2)}
    readers = receivers(network, lambda host, rank: [(1, None), (2, None)])
    senders = [Sender(network, n, [(1, 7), (2, 8)]) for n in range(num_sources)]
    run(network, [*senders, *readers])
    check(network, readers, sizes)
    assert all(set(reader.completed) == {1, 2} for reader in readers)
