"""The trees of one edge on one host, and the ranks that read from them."""

import pytest

from rljob_worker.databuffer.protocol.errors import OutOfOrder
from rljob_worker.databuffer.protocol.peer_side import (
    ChunkOffered,
    ChunkTaken,
    SourceClosed,
    VersionGone,
    VersionWanted,
)
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.weights.edge import Edge, VersionReaders
from rljob_worker.databuffer.weights.tests.network import EDGE, routes_of
from rljob_worker.databuffer.weights.tree import Fetch
from rljob_worker.errors import PeerLost

HERE, OTHER = Host("rollout", 0), Host("rollout", 1)
ABOVE = {0: Host("train", 0), 1: OTHER}
"""Two sources over two hosts of two ranks: this one is first in the first tree, and last in the second."""


def edge_at(host: Host = HERE) -> Edge:
    routes = routes_of((1, 2), (2, 2))
    return Edge(host, routes.by_edge[EDGE], routes.slots(host))


def arrive(edge: Edge, source: int, index: int, version: int = 1) -> None:
    """A chunk is offered, fetched and good."""
    (fetch,) = edge.announced(ABOVE[source], ChunkOffered(EDGE, version, source, index, 5, b"", 0))
    assert isinstance(fetch, Fetch)
    edge.good(fetch.chunk)


def close(edge: Edge, num_chunks: tuple[int, int], version: int = 1) -> None:
    for source, number in enumerate(num_chunks):
        edge.announced(ABOVE[source], SourceClosed(EDGE, version, source, number))


def take(edge: Edge, rank: int, version: int = 1) -> tuple[int, int] | int | None:
    """One chunk: (source, index), and it is let go at once."""
    edge.begins(rank, version)
    result = edge.next(rank, version)
    if result is None or isinstance(result, int):
        return result
    edge.give(rank, result)
    edge.released(rank, result.offer.source, version, result.offer.index)
    return result.offer.source, result.offer.index


def num_held(edge: Edge) -> int:
    return sum(edge.tree(source).num_held for source in (0, 1))


def test_ranks_read_chunks_as_they_come_from_any_source_and_each_once():
    edge = edge_at()
    assert take(edge, 0) is None
    arrive(edge, 1, 0)
    arrive(edge, 0, 0)
    arrive(edge, 1, 1)
    assert [take(edge, 0) for _ in range(4)] == [(1, 0), (0, 0), (1, 1), None]
    close(edge, (1, 2))
    assert take(edge, 0) == 3 and take(edge, 1) == (1, 0)


def test_a_version_is_complete_when_all_sources_have_closed_it_and_all_chunks_were_given():
    edge = edge_at()
    edge.announced(ABOVE[0], SourceClosed(EDGE, 1, 0, 0))
    assert take(edge, 0) is None and [s.number for s in edge.late_sources(1)] == [1]
    arrive(edge, 1, 0)
    edge.announced(ABOVE[1], SourceClosed(EDGE, 1, 1, 1))
    assert edge.late_sources(1) == []
    assert edge.next(0, 1) is not None and take(edge, 0) == (1, 0) and take(edge, 0) == 1


def test_a_chunk_is_not_given_twice_to_a_rank_that_still_holds_it():
    edge = edge_at()
    arrive(edge, 0, 0)
    chunk = edge.next(0, 1)
    edge.give(0, chunk)
    assert edge.next(0, 1) is None and edge.next(1, 1) is chunk
    close(edge, (1, 0))
    assert edge.next(0, 1) == 1 and edge.next(1, 1) is chunk


def test_a_rank_that_asks_for_a_version_leaves_older_ones_behind():
    edge = edge_at()
    arrive(edge, 1, 0, 1)
    arrive(edge, 1, 0, 2)
    assert take(edge, 0, 2) == (1, 0)
    assert num_held(edge) == 2
    assert take(edge, 1, 2) == (1, 0)
    assert num_held(edge) == 0
    with pytest.raises(OutOfOrder, match="version 1 of weights/actor is over: rank 0 can have version 2 next"):
        edge.begins(0, 1)


def test_a_skipped_version_goes_and_cannot_be_had_any_more():
    edge = edge_at()
    arrive(edge, 1, 0)
    assert edge.skip(0, 1) == [] and num_held(edge) == 1
    edge.skip(1, 1)
    assert num_held(edge) == 0
    arrive(edge, 1, 1)  # nobody wants it
    assert num_held(edge) == 0
    with pytest.raises(OutOfOrder, match="rank 0 can have version 2 next"):
        edge.begins(0, 1)
    arrive(edge, 1, 0, 2)
    assert take(edge, 0, 2) == (1, 0)


def test_skipping_an_older_version_again_changes_nothing():
    edge = edge_at()
    arrive(edge, 1, 0, 3)
    assert take(edge, 0, 3) == (1, 0)
    edge.skip(0, 1)
    edge.skip(0, 2)
    arrive(edge, 1, 1, 3)
    assert take(edge, 0, 3) == (1, 1)
    close(edge, (0, 2), 3)
    assert take(edge, 0, 3) == 2


def test_what_a_rank_leaves_behind_makes_room_for_what_waits():
    edge = edge_at()
    edge.skip(1, 1)
    for index in range(4):
        arrive(edge, 1, index)
    assert edge.announced(ABOVE[1], ChunkOffered(EDGE, 2, 1, 0, 5, b"", 0)) == []
    (fetch,) = edge.begins(0, 2)
    assert isinstance(fetch, Fetch) and fetch.chunk.offer.version == 2


def test_a_version_that_a_source_left_out_never_comes():
    edge = edge_at()
    arrive(edge, 0, 0, 2)
    (asked,) = edge.begins(0, 1)  # of source 0 only: nothing newer of the other is here
    assert (asked.host, asked.message) == (ABOVE[0], VersionWanted(EDGE, 1, 0))
    assert edge.begins(0, 1) == [] and edge.next(0, 1) is None
    edge.announced(ABOVE[0], VersionGone(EDGE, 1, 0, (2, 3)))
    words = "nobody holds version 1 of weights/actor any more: versions 2 and 3 are held by source 0 on host train-0"
    with pytest.raises(OutOfOrder, match=words):
        edge.next(0, 1)


def test_a_version_that_a_source_has_finished_can_be_read_while_it_sends_the_next():
    edge = edge_at()
    close(edge, (0, 0), 1)
    arrive(edge, 1, 0, 2)
    edge.begins(0, 1)
    assert edge.next(0, 1) == 0


def test_peers_that_have_no_business_here_are_lost():
    edge = edge_at()
    with pytest.raises(PeerLost, match="host rollout-1 is not above this one in source 0 of weights/actor"):
        edge.announced(OTHER, ChunkOffered(EDGE, 1, 0, 0, 5, b"", 0))
    with pytest.raises(PeerLost, match="host train-0 is not above this one in source 1"):
        edge.announced(Host("train", 0), SourceClosed(EDGE, 1, 1, 0))
    with pytest.raises(PeerLost, match="source 2 of weights/actor has no business with this host"):
        edge.announced(OTHER, ChunkTaken(EDGE, 1, 2, 0))


def test_a_version_that_has_gone_by_is_read_when_it_is_offered_again():
    edge = edge_at()
    arrive(edge, 1, 0, 2)
    edge.announced(ABOVE[0], SourceClosed(EDGE, 1, 0, 0))
    (asked,) = edge.begins(1, 1)
    assert (asked.host, asked.message) == (ABOVE[1], VersionWanted(EDGE, 1, 1))
    assert edge.announced(ABOVE[1], VersionGone(EDGE, 1, 1, ()))[0].host == Host("train", 0)
    with pytest.raises(PeerLost, match="host rollout-1 is not above this one in source 1"):
        edge.announced(ABOVE[1], ChunkOffered(EDGE, 1, 1, 0, 5, b"", 0))
    (fetch,) = edge.announced(Host("train", 0), ChunkOffered(EDGE, 1, 1, 0, 5, b"", 0))
    edge.announced(Host("train", 0), SourceClosed(EDGE, 1, 1, 1))
    edge.good(fetch.chunk)
    assert [take(edge, 1, 1), take(edge, 1, 1)] == [(1, 0), 1] and take(edge, 0, 1) == (1, 0)


def test_a_host_that_holds_a_version_offers_it_to_whoever_asks():
    edge = edge_at(Host("train", 0))
    edge.tree(1).open(1)
    edge.seal(1, edge.tree(1).reserve(), 5, b"t", 9)
    edge.close(1)
    offered, closed = edge.announced(HERE, VersionWanted(EDGE, 1, 1))
    assert (offered.host, offered.message.index, closed.message.num_chunks) == (HERE, 0, 1)
    edge.release_version(1, 1)
    assert edge.announced(HERE, VersionWanted(EDGE, 1, 1))[0].message == VersionGone(EDGE, 1, 1, ())


def test_a_child_takes_a_chunk():
    edge = edge_at()
    arrive(edge, 0, 0)
    for rank in (0, 1):
        take(edge, rank)
    assert num_held(edge) == 1
    assert edge.announced(OTHER, ChunkTaken(EDGE, 1, 0, 0)) == [] and num_held(edge) == 0


def test_the_host_of_the_sources_seals_and_closes():
    edge = edge_at(Host("train", 0))
    edge.tree(1).open(1)
    (reported,) = edge.seal(1, edge.tree(1).reserve(), 5, b"t", 9)
    assert (reported.host, reported.message) == (OTHER, ChunkOffered(EDGE, 1, 1, 0, 5, b"t", 9))
    (reported,) = edge.close(1)
    assert (reported.host, reported.message) == (OTHER, SourceClosed(EDGE, 1, 1, 1))


def test_what_is_held_in_words_by_source_and_three_at_most():
    edge = edge_at()
    for index in range(4):
        arrive(edge, 1, index)
    arrive(edge, 0, 0)
    words = edge.explain()
    assert [w.split(",")[0] for w in words] == [
        "chunk 0 of source 0 of weights/actor",
        "chunk 0 of source 1 of weights/actor",
        "chunk 1 of source 1 of weights/actor",
    ]
    assert len(edge.explain([1])) == 3 and len(edge.explain([0])) == 1


def test_versions_begin_at_0():
    readers = VersionReaders("weights/actor", [3, 4], 1)
    assert readers.wanting(0) == {3, 4} and not readers.is_new_to(3, 0) and readers.is_new_to(3, 1)


def test_what_was_closed_is_remembered_for_the_slowest_rank_and_no_longer():
    readers = VersionReaders("weights/actor", [0, 1], 2)
    for version in (1, 2):
        for source in (0, 1):
            readers.closed(version, source, 1)
    readers.leave_behind(0, 3)
    assert readers.late(1) == [] and readers.wanting(2) == {1}
    readers.leave_behind(1, 2)
    assert readers.late(1) == [0, 1] and readers.late(2) == []
    readers.closed(1, 0, 1)  # nobody wants it any more
    assert readers.late(1) == [0, 1]


def test_a_rank_has_had_all_when_every_source_has_closed_and_the_numbers_agree():
    readers = VersionReaders("weights/actor", [0], 2)
    readers.closed(1, 0, 2)
    readers.gave(0)
    readers.gave(0)
    assert readers.total_had(0, 1) is None
    readers.closed(1, 1, 1)
    assert readers.total_had(0, 1) is None
    readers.gave(0)
    assert readers.total_had(0, 1) == 3
    readers.leave_behind(0, 1)
    assert readers.total_had(0, 1) is None  # counted anew
    with pytest.raises(OutOfOrder, match="version 0 of weights/actor is over: rank 0 can have version 1 next"):
        readers.is_new_to(0, 0)
