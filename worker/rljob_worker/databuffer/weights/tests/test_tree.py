"""One source's tree on one host: the order in which chunks take slots, are offered on, and leave."""

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
from rljob_worker.databuffer.weights.chunk import WeightsChunk
from rljob_worker.databuffer.weights.tree import Fetch, Send, SourceTree
from rljob_worker.errors import PeerLost

EDGE = "weights/actor"
ABOVE, LEFT, RIGHT = Host("train", 0), Host("rollout", 1), Host("rollout", 2)


ROOT = Host("train", 5)


def tree(children=(LEFT, RIGHT), slots=(0, 100), parent=ABOVE, num_versions=1) -> SourceTree:
    """Two slots of 100 bytes."""
    return SourceTree(EDGE, 3, parent, children, slots, 100, root=ROOT, num_versions=num_versions)


def store(num_slots=2, num_versions=1) -> SourceTree:
    """The source's own host, above one other."""
    return tree((LEFT,), range(0, 100 * num_slots, 100), None, num_versions)


def put(some: SourceTree, version: int, num_chunks: int) -> list[WeightsChunk]:
    """A whole version of the source's, which the host below has taken."""
    some.open(version)
    chunks = [some.seal(some.reserve(), 10, b"table", 77) for _ in range(num_chunks)]
    for chunk in chunks:
        some.good(chunk, set(), 1)
        some.taken(LEFT, *chunk.key)
    some.closed(some.close())
    return chunks


def offer(index: int, version: int = 1, num_bytes: int = 10) -> ChunkOffered:
    return ChunkOffered(EDGE, version, 3, index, num_bytes, b"table", 77)


def offered(some: SourceTree, index: int, version: int = 1) -> WeightsChunk | None:
    """The chunk that is fetched for an offer; None when it waits for a slot."""
    effects = some.offered(offer(index, version))
    return effects[0].chunk if effects else None


def fetched(effects) -> list[tuple[int, int]]:
    """(index, slot) of what is fetched."""
    return [(effect.chunk.offer.index, effect.chunk.offset) for effect in effects if isinstance(effect, Fetch)]


def sent(effects) -> list[tuple[Host, object]]:
    return [(effect.host, effect.message) for effect in effects if isinstance(effect, Send)]


def test_a_chunk_takes_a_slot_is_fetched_from_the_parent_then_offered_on_and_goes_when_all_have_it():
    some = tree()
    (fetch,) = some.offered(offer(0))
    assert isinstance(fetch, Fetch) and fetch.host == ABOVE and fetch.chunk.offset == 0
    chunk = fetch.chunk
    assert some.find(1, 0) is None and some.num_held == 1  # its bytes are not here yet
    assert some.good(chunk, {7}, 5) == [
        Send(ABOVE, ChunkTaken(EDGE, 1, 3, 0)),
        Send(LEFT, offer(0)),
        Send(RIGHT, offer(0)),
    ]
    assert some.find(1, 0) is chunk and chunk.sealed == 5
    for leave in (lambda: some.taken(LEFT, 1, 0), lambda: some.released(7, 1, 0), lambda: some.taken(RIGHT, 1, 0)):
        assert some.num_held == 1
        assert leave() == []
    assert some.num_held == 0 and some.find(1, 0) is None


def test_chunks_wait_for_slots_in_their_order_and_take_those_that_come_free():
    some = tree(children=())
    first, second = offered(some, 0), offered(some, 1)
    assert [first.offset, second.offset] == [0, 100]
    assert offered(some, 2) is None and offered(some, 3) is None
    # the second slot is free first: chunk 2 takes it
    assert fetched(some.good(second, set(), 1)) == [(2, 100)]
    assert fetched(some.good(first, set(), 2)) == [(3, 0)]
    assert some.num_held == 2


def test_children_hear_of_chunks_in_the_order_of_the_source_whatever_came_first():
    some = tree(children=(LEFT,))
    first, second = offered(some, 0), offered(some, 1)
    assert sent(some.good(second, set(), 1)) == [(ABOVE, ChunkTaken(EDGE, 1, 3, 1))]
    assert some.closed(SourceClosed(EDGE, 1, 3, 2)) == []
    assert sent(some.good(first, set(), 2)) == [
        (ABOVE, ChunkTaken(EDGE, 1, 3, 0)),
        (LEFT, offer(0)),
        (LEFT, offer(1)),
        (LEFT, SourceClosed(EDGE, 1, 3, 2)),
    ]


def test_a_version_without_chunks_is_passed_on():
    closed = SourceClosed(EDGE, 4, 3, 0)
    assert tree().closed(closed) == [Send(LEFT, closed), Send(RIGHT, closed)]


def test_a_rank_lets_chunks_of_older_versions_go_and_releases_twice_without_harm():
    some = tree(children=(), slots=(0, 100, 200))
    chunks = [offered(some, 0, version) for version in (1, 2, 3)]
    for number, chunk in enumerate(chunks, 1):
        some.good(chunk, {7, 8}, number)
    assert some.passed_over(7, 3) == [] and [c.readers for c in chunks] == [{8}, {8}, {7, 8}]
    assert some.released(7, 1, 0) == []
    some.passed_over(8, 2)
    assert [c.offer.version for c in some.chunks] == [2, 3]
    assert some.released(8, 1, 0) == []  # it is gone
    assert some.released(8, 2, 0) == [] and [c.offer.version for c in some.chunks] == [3]


def test_what_a_rank_lets_go_makes_room_for_the_next():
    some = tree(children=(), slots=(0,))
    chunk = offered(some, 0)
    offered(some, 1)
    some.good(chunk, {7}, 1)
    assert fetched(some.passed_over(7, 2)) == [(1, 0)]
    assert some.passed_over(7, 3) == []  # chunk 1 is not here yet


def test_the_source_fills_slots_seals_and_closes():
    some = tree(children=(LEFT,), parent=None)
    some.open(4)
    assert some.reserve() == 0 and some.reserve() == 100 and some.reserve() is None
    assert some.num_held == 2
    chunk = some.seal(100, 60, b"t", 9)
    assert chunk.offer == ChunkOffered(EDGE, 4, 3, 0, 60, b"t", 9) and chunk.offset == 100
    assert some.num_held == 2
    assert some.good(chunk, set(), 1) == [Send(LEFT, chunk.offer)]
    assert some.seal(0, 100, b"", 0).offer.index == 1
    assert some.close() == SourceClosed(EDGE, 4, 3, 2)
    some.taken(LEFT, 4, 0)
    assert some.num_held == 2  # it is kept
    some.release(4)
    assert some.num_held == 1
    some.open(5)
    again = some.seal(some.reserve(), 0, b"", 0).offer
    assert (again.version, again.index) == (5, 0)


def test_slots_that_were_reserved_and_never_sealed_come_back_with_the_next_version():
    some = tree(children=(), parent=None)
    some.open(1)
    assert [some.reserve(), some.reserve(), some.reserve()] == [0, 100, None]
    some.release(1)
    some.open(2)
    assert some.num_held == 0
    assert [some.reserve(), some.reserve(), some.reserve()] == [0, 100, None]
    with pytest.raises(AssertionError, match="source 3 has no slot at 200"):
        some.seal(200, 1, b"", 0)
    with pytest.raises(AssertionError, match="101 bytes in a slot of 100"):
        some.seal(0, 101, b"", 0)


def test_versions_only_grow():
    some = tree(parent=None)
    some.open(0)
    for version in (0, -1):
        with pytest.raises(OutOfOrder, match=f"version {version} of weights/actor after version 0: versions only grow"):
            some.open(version)


@pytest.mark.parametrize(
    ("before", "lie", "words"),
    [
        ([], offer(1), "chunk 1 of version 1 of source 3 of weights/actor after 0 chunks of version 1$"),
        ([offer(0)], offer(0), "chunk 0 of version 1 .* after 1 chunks of version 1$"),
        ([offer(0, 2)], offer(0, 1), "chunk 0 of version 1 .* after 1 chunks of version 2$"),
        ([SourceClosed(EDGE, 1, 3, 0)], offer(0), "chunk 0 .* after 0 chunks of version 1, which was closed$"),
        (
            [offer(0)],
            SourceClosed(EDGE, 1, 3, 2),
            "the end of version 1 after 2 chunks .* after 1 chunks of",
        ),
        ([offer(0, 2)], SourceClosed(EDGE, 1, 3, 0), "the end of version 1 after 0 chunks"),
        ([offer(0, 2)], SourceClosed(EDGE, 1, 3, 1), "the end of version 1 after 1 chunks"),
        ([SourceClosed(EDGE, 1, 3, 0)], SourceClosed(EDGE, 1, 3, 0), "the end of .* which was closed$"),
        ([], SourceClosed(EDGE, 1, 3, 1), "the end of version 1 after 1 chunks"),
        ([], offer(0, num_bytes=101), "a chunk of 101 bytes of weights/actor: slots have 100"),
    ],
)
def test_a_parent_that_says_what_cannot_be_is_a_lost_peer(before, lie, words):
    some = tree()

    def hears(message):
        return some.offered(message) if isinstance(message, ChunkOffered) else some.closed(message)

    for message in before:
        hears(message)
    with pytest.raises(PeerLost, match=f"host train-0 offered {words}"):
        hears(lie)


def test_a_chunk_as_long_as_a_slot_is_fine_and_a_version_may_be_left_unfinished():
    some = tree()
    assert len(some.offered(offer(0, 1, 100))) == 1
    assert len(some.offered(offer(0, 2))) == 1 and some.version == 2


def test_only_those_who_were_offered_a_chunk_take_it_and_once():
    some = tree(children=(LEFT,))
    chunk = offered(some, 0)
    words = "host rollout-{} took chunk {} of weights/actor, version 1, which it was not offered"
    with pytest.raises(PeerLost, match=words.format(1, 0)):
        some.taken(LEFT, 1, 0)  # not here yet
    some.good(chunk, {7}, 1)
    with pytest.raises(PeerLost, match=words.format(2, 0)):
        some.taken(RIGHT, 1, 0)
    with pytest.raises(PeerLost, match=words.format(1, 1)):
        some.taken(LEFT, 1, 1)
    some.taken(LEFT, 1, 0)
    with pytest.raises(PeerLost, match=words.format(1, 0)):
        some.taken(LEFT, 1, 0)


def test_a_chunk_in_words():
    some = tree()
    chunk = offered(some, 0)
    name = "chunk 0 of source 3 of weights/actor, version 1"
    assert str(chunk) == f"{name}, on its way"
    chunk.breaks = 1
    assert str(chunk) == f"{name}, on its way (1 streams broke)"
    some.good(chunk, {8, 7}, 1)
    assert str(chunk) == f"{name}, not yet read by host rollout-1, host rollout-2, rank 7, rank 8"


# ---- versions that are kept


def test_the_source_goes_on_while_hosts_fetch_and_a_version_stays_until_it_is_released():
    some = store(num_slots=4, num_versions=2)
    put(some, 1, 2)
    some.open(2)
    late = some.seal(some.reserve(), 10, b"", 0)
    some.good(late, set(), 3)
    assert some.num_held == 3 and some.versions.held == (1, 2)
    some.release(1)
    some.release(2)
    assert some.num_held == 1  # the host below has still to take it
    some.taken(LEFT, 2, 0)
    assert some.num_held == 0


def test_no_more_versions_begin_than_the_plan_has():
    some = store(num_slots=4, num_versions=2)
    put(some, 1, 1)
    put(some, 3, 1)
    with pytest.raises(OutOfOrder, match="version 4 of weights/actor cannot begin: versions 1 and 3 are not released"):
        some.open(4)
    some.release(3)
    some.open(4)
    assert some.versions.held == (1, 4)


def test_where_the_plan_has_one_version_what_is_kept_gives_way_and_with_more_the_source_waits():
    one, two = store(num_slots=3), store(num_slots=3, num_versions=2)
    for some in (one, two):
        put(some, 1, 2)
    assert [one.reserve() for _ in range(4)] == [200, 100, 0, None] and one.versions.held == ()
    assert two.reserve() is not None and two.reserve() is None and two.versions.whole == (1,)


def test_a_version_that_gave_way_is_kept_no_further():
    some = store(num_slots=2)
    some.open(1)
    first, second = (some.seal(some.reserve(), 10, b"", 0) for _ in range(2))
    for chunk in (first, second):
        some.good(chunk, set(), 1)
    assert some.reserve() is None
    some.taken(LEFT, 1, 0)
    assert some.reserve() == 0
    some.taken(LEFT, 1, 1)
    assert some.num_held == 1  # what was reserved


def test_a_host_below_keeps_what_it_has_room_for():
    some = tree(children=(), slots=(0, 100, 200), num_versions=2)  # one of them is for late chunks
    for version in (1, 2):
        some.good(offered(some, 0, version), set(), version)
        some.closed(SourceClosed(EDGE, version, 3, 1))
    assert some.num_held == 2 and some.versions.whole == (1, 2)
    chunk = offered(some, 0, 3)  # the oldest goes
    assert chunk.offset == 100 and some.versions.held == (2, 3)
    # a chunk that waits for a slot has it as soon as something was read
    below = tree(children=(LEFT,), slots=(0, 100), num_versions=2)
    first = offered(below, 0)
    below.good(first, set(), 1)
    assert offered(below, 1) is None
    assert fetched(below.taken(LEFT, 1, 0)) == [(1, 100)] and below.versions.held == ()
    passing = tree(children=())
    passing.good(offered(passing, 0), set(), 1)
    assert passing.num_held == 0


# ---- versions that have gone by


def test_whoever_holds_a_version_offers_it_once_more_in_order_and_keeps_it_until_it_is_taken():
    some = store(num_slots=4, num_versions=2)
    chunks = put(some, 1, 2)
    assert some.wanted(RIGHT, 1) == [
        *(Send(RIGHT, chunk.offer) for chunk in chunks),
        Send(RIGHT, SourceClosed(EDGE, 1, 3, 2)),
    ]
    some.release(1)
    assert some.num_held == 2
    for chunk in chunks:
        some.taken(RIGHT, *chunk.key)
    assert some.num_held == 0
    assert some.wanted(RIGHT, 1) == [Send(RIGHT, VersionGone(EDGE, 1, 3, ()))]


def test_a_version_that_is_not_whole_is_not_offered_again():
    some = store(num_slots=4, num_versions=2)
    put(some, 1, 1)
    some.open(2)
    some.good(some.seal(some.reserve(), 10, b"", 0), set(), 1)
    assert some.wanted(RIGHT, 2) == [Send(RIGHT, VersionGone(EDGE, 2, 3, (1,)))]


def test_a_version_that_has_gone_by_is_asked_of_the_parent_and_then_of_the_sources_host():
    some = tree(children=(LEFT,), slots=(0, 100, 200), num_versions=2)
    some.good(offered(some, 0, 5), {7}, 1)
    offered(some, 1, 5)
    assert offered(some, 2, 5) is None  # no slot
    assert some.want(4) == [Send(ABOVE, VersionWanted(EDGE, 4, 3))] and some.want(4) == []
    assert some.holder_of(4) == ABOVE
    assert some.gone(VersionGone(EDGE, 4, 3, (5,))) == [Send(ROOT, VersionWanted(EDGE, 4, 3))]
    assert some.holder_of(4) == ROOT and some.holder_of(5) == ABOVE and some.not_held(4) is None
    # the late chunk has a slot that newer ones leave free, goes to nobody else, and is taken from its holder
    (fetch,) = some.offered(offer(0, 4))
    assert (fetch.host, fetch.chunk.offset) == (ROOT, 0)
    assert some.offered(offer(1, 4)) == [] and some.closed(SourceClosed(EDGE, 4, 3, 2)) == []
    assert some.good(fetch.chunk, {7}, 2) == [Send(ROOT, ChunkTaken(EDGE, 4, 3, 0))]
    (fetch,) = some.released(7, 4, 0)
    assert fetch.chunk.key == (4, 1)
    assert some.version == 5 and some.holder_of(4) == ABOVE


def test_what_nobody_holds_is_known_with_what_there_is():
    some = tree(num_versions=2, slots=(0, 100, 200))
    some.want(4)
    some.gone(VersionGone(EDGE, 4, 3, ()))
    assert some.gone(VersionGone(EDGE, 4, 3, (2, 5))) == [] and some.not_held(4) == (2, 5) and some.want(4) == []


@pytest.mark.parametrize(
    ("before", "lie"),
    [
        ([], offer(1, 4)),
        ([], offer(0, 4, 101)),
        ([], SourceClosed(EDGE, 4, 3, 1)),
        ([offer(0, 4)], VersionGone(EDGE, 4, 3, ())),
        ([], VersionGone(EDGE, 6, 3, ())),
        ([VersionGone(EDGE, 4, 3, ())] * 2, offer(0, 4)),
        ([VersionGone(EDGE, 4, 3, ())] * 2, SourceClosed(EDGE, 4, 3, 0)),
        ([VersionGone(EDGE, 4, 3, ())] * 2, VersionGone(EDGE, 4, 3, ())),
    ],
)
def test_a_holder_that_says_what_cannot_be_is_a_lost_peer(before, lie):
    some = tree(num_versions=2, slots=(0, 100, 200))
    offered(some, 0, 5)
    some.want(4)
    says = {ChunkOffered: some.offered, SourceClosed: some.closed, VersionGone: some.gone}
    for message in before:
        says[type(message)](message)
    with pytest.raises(PeerLost, match="source 3 of weights/actor"):
        says[type(lie)](lie)
