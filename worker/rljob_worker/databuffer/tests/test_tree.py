"""Trees of several hosts: all climbs once, each announcement arrives once, and nobody hears what is not for it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.databuffer.protocol.errors import Malformed, OutOfOrder
from rljob_worker.databuffer.protocol.peer_side import Down, Up
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.job_tree import JobTree
from rljob_worker.databuffer.tests.forest import COUNT, NOTE, ORDER, Forest
from rljob_worker.databuffer.tree import SMALL_BYTES

STOP = Up("stop", 0, b"")


def train(*indices: int) -> list[Host]:
    return [Host("train", index) for index in indices]


def forest(num_hosts: int, fan_out: int = 2, **options) -> Forest:
    """Member 10 p on the host at position p, and nobody else, unless `members` says so."""
    members = {position: [10 * position] for position in range(num_hosts)}
    return Forest(JobTree((("train", num_hosts),), fan_out), **({"members": members} | options))


@st.composite
def shapes(draw):
    """1 to 70 hosts in 1 to 3 groups, fan-out 1 to 33."""
    sizes = draw(st.lists(st.integers(1, 23), min_size=1, max_size=3))
    groups = tuple((f"group{number}", size) for number, size in enumerate(sizes))
    return JobTree(groups, draw(st.integers(1, 33)))


@st.composite
def positions(draw, shape):
    """Some of a shape's, perhaps none."""
    return tuple(sorted(draw(st.sets(st.integers(0, shape.size - 1)))))


def path_up(shape: JobTree, host: Host) -> list[Host]:
    """A host and all above it."""
    parent = shape.parent(host)
    return [host] if parent is None else [host, *path_up(shape, parent)]


def on_the_way(shape: JobTree, ends: tuple[int, ...]) -> set[Host]:
    """Hosts at these positions, and those above them."""
    return {host for position in ends for host in path_up(shape, shape.host(position))}


# ---- up


@settings(max_examples=80)
@given(st.data(), shapes(), st.randoms(use_true_random=False))
def test_every_contribution_reaches_the_root_exactly_once(data, shape, rng):
    sources = data.draw(positions(shape))
    counts = {position: data.draw(st.integers(1, 8)) for position in sources}
    members = {position: range(100 * position, 100 * position + count) for position, count in counts.items()}
    job = Forest(shape, members, rng=rng)
    speakers = [member for item in members.values() for member in item]
    rng.shuffle(speakers)
    for member in speakers:
        assert job.complete == []
        job.contribute(member)
        job.go_on(rng.randrange(4))
    job.go_on()
    if not speakers:
        assert job.complete == [] and job.delivered == []
        return
    ((host, step, everything),) = job.complete
    assert (host, step) == (shape.root, 1)
    assert Counter(map(int, everything.split())) == Counter(speakers)
    # one message of every host that has something to pass on, to its parent
    speaking = on_the_way(shape, sources) - {shape.root}
    assert sorted((a, b) for a, b, _ in job.delivered) == sorted((host, shape.parent(host)) for host in speaking)
    assert all(len(payloads) > 1 for payloads in job.merges)


@settings(max_examples=30)
@given(shapes(), st.randoms(use_true_random=False))
def test_what_the_root_gets_does_not_depend_on_who_was_first(shape, rng):
    def everything(order: random.Random) -> bytes:
        members = {position: [10 * position, 10 * position + 1] for position in range(shape.size)}
        job = Forest(shape, members, rng=order)
        speakers = [member for item in members.values() for member in item]
        order.shuffle(speakers)
        for member in speakers:
            job.contribute(member)
            job.go_on(order.randrange(3))
        job.go_on()
        return job.complete[0][2]

    assert everything(rng) == everything(random.Random(7))


def test_a_host_waits_for_its_members_and_those_below_and_merges_in_the_background():
    #       0
    #    1     2     hosts 1, 3 and 4 have members; 2 has neither any nor anybody below
    #   3 4
    job = forest(5, members={1: [11, 12], 3: [30], 4: [40]})
    nought, one, three, four = train(0, 1, 3, 4)
    job.contribute(40)
    assert list(job.post[four, one]) == [Up(COUNT, 1, b"40")]  # nothing to merge
    job.contribute(12)
    job.go_on()
    job.contribute(30)
    job.go_on()
    assert job.at(1).missing(COUNT, 1) == ([11], [])
    assert job.root.missing(COUNT, 1) == ([], [one])
    job.contribute(11)
    assert [what for what, _ in job.work] == ["merging count of step 1"]
    assert job.merges == [] and job.complete == []
    job.go_on()
    assert job.complete == [(nought, 1, b"11 12 30 40")]
    assert job.delivered == [
        (four, one, Up(COUNT, 1, b"40")),
        (three, one, Up(COUNT, 1, b"30")),
        (one, nought, Up(COUNT, 1, b"11 12 30 40")),
    ]
    assert job.merges == [[b"11", b"12", b"30", b"40"]] and len(job.done) == 1


@pytest.mark.parametrize("size, small", [(SMALL_BYTES // 2, ["merging count of step 1"]), (SMALL_BYTES // 2 + 1, [])])
def test_few_bytes_may_be_merged_by_the_message_that_brings_the_last(size, small):
    job = forest(2, members={0: [1], 1: [2]})
    job.root.contribute(COUNT, 1, 1, bytes(SMALL_BYTES // 2))
    job.at(1).contribute(COUNT, 1, 2, bytes(size))
    job.go_on()
    assert job.small == small and job.done == ["merging count of step 1"]


def test_a_worker_does_not_wait_for_what_its_word_completes():
    job = forest(1, members={0: [1, 2]})
    job.contribute(1)
    job.contribute(2)
    assert job.small == [] and [what for what, _ in job.work] == ["merging count of step 1"]


@pytest.mark.parametrize("size, small", [(SMALL_BYTES, ["order of step 3"]), (SMALL_BYTES + 1, [])])
def test_few_bytes_may_be_acted_on_by_the_message_that_brings_them(size, small):
    job = forest(1, audience=(0,))
    job.root.tell(ORDER, 3, bytes(size))
    assert job.small == small


def test_steps_do_not_wait_for_each_other():
    job = forest(2)
    job.contribute(10, step=2)
    job.contribute(0, step=2)
    job.contribute(0, step=1)
    job.go_on()
    assert [step for _, step, _ in job.complete] == [2]
    assert job.root.missing(COUNT, 1) == ([], train(1))
    assert job.root.missing(COUNT, 3) == ([0], train(1))


def test_who_speaks_twice_or_is_unknown_is_refused():
    job = forest(4, members={0: [0], 1: [10]})
    job.contribute(10)
    with pytest.raises(OutOfOrder, match="member 10 has said it before"):
        job.contribute(10)
    with pytest.raises(AssertionError, match="11 is none of"):
        job.at(1).contribute(COUNT, 1, 11, b"")
    job.root.hear_up(train(1)[0], Up(COUNT, 1, b"10"))
    with pytest.raises(Malformed, match="host train-1 has said it twice"):
        job.root.hear_up(train(1)[0], Up(COUNT, 1, b"10"))
    # host 2 is a child without a member, host 3 a grandchild
    with pytest.raises(Malformed, match="host train-2 has nothing to say here"):
        job.root.hear_up(train(2)[0], Up(COUNT, 1, b""))
    with pytest.raises(Malformed, match="host train-3 is not below this one"):
        job.root.hear_up(train(3)[0], Up(COUNT, 1, b""))
    with pytest.raises(Malformed, match="nobody .* 'gossip'"):
        job.root.hear_up(train(1)[0], Up("gossip", 1, b""))


def test_what_has_gone_up_is_forgotten_after_some_steps_and_what_has_not_never_is():
    job = forest(1, members={0: [0, 1]}, kept_steps=2)
    for member, step in [(0, 1), (1, 1), (0, 2), (0, 3), (1, 3)]:
        job.contribute(member, step)
    job.go_on()
    assert sorted(job.complete) == [(train(0)[0], 1, b"0 1"), (train(0)[0], 3, b"0 1")]
    assert job.root.missing(COUNT, 1) == ([], [])
    job.contribute(0, 4)
    assert job.root.missing(COUNT, 1) == ([0, 1], [])
    job.contribute(0, 9)
    assert job.root.missing(COUNT, 3) == ([0, 1], [])
    assert job.root.missing(COUNT, 2) == ([1], [])
    job.contribute(1, 2)
    job.go_on()
    assert job.complete[2:] == [(train(0)[0], 2, b"0 1")]


def test_the_step_before_those_that_are_kept_is_the_first_to_be_forgotten():
    job = forest(1, members={0: [0]}, kept_steps=2)
    for step in (1, 2, 3):
        job.contribute(0, step)
    assert job.root.missing(COUNT, 1) == ([], [])
    job.contribute(0, 4)
    assert [job.root.missing(COUNT, step)[0] for step in (1, 2, 3, 4)] == [[0], [], [], []]


def test_topics_do_not_forget_for_each_other():
    job = forest(1, members={0: [0]}, topics=(COUNT, "other"), kept_steps=2)
    job.contribute(0, 1)
    job.root.contribute("other", 9, 0, b"nought")
    assert job.root.missing(COUNT, 1) == ([], [])


def test_to_ask_who_is_missing_begins_nothing():
    job = forest(2)
    for step in range(1, 100):
        assert job.root.missing(COUNT, step) == ([0], train(1))
    assert job.root.unfinished == []


def test_no_more_than_64_steps_are_gathered_at_a_time_of_each_topic():
    job = forest(2, topics=(COUNT, "other"), kept_steps=100)
    # steps that have gone up do not count
    for step in range(1, 11):
        job.contribute(0, step)
        job.contribute(10, step)
    job.go_on()
    for step in range(11, 75):
        job.contribute(0, step)
    with pytest.raises(OutOfOrder, match="step 75 of count, while 64 others are being gathered"):
        job.contribute(0, 75)
    job.root.contribute("other", 75, 0, b"")
    job.contribute(10, 11)
    job.go_on()
    job.contribute(0, 75)


def test_what_members_have_said_is_unfinished_until_it_has_gone_up():
    job = forest(3, members={0: [0, 1], 1: [10], 2: [20]}, topics=("other", COUNT))
    root = job.root
    job.contribute(10, step=3)
    job.contribute(10, step=1)
    job.contribute(10, step=2)
    assert job.at(1).unfinished == []
    job.go_on()
    assert root.unfinished == []  # what children say is theirs to repeat
    job.contribute(1, step=2)
    job.contribute(0, step=2)
    job.contribute(0, step=1)
    root.contribute("other", 1, 0, b"")
    assert root.unfinished == [(COUNT, 1), (COUNT, 2), ("other", 1)]
    job.contribute(20, step=2)
    job.deliver_all()
    assert root.unfinished == [(COUNT, 1), (COUNT, 2), ("other", 1)]  # not merged yet
    job.go_on()
    assert root.unfinished == [(COUNT, 1), ("other", 1)]


# ---- stop


@settings(max_examples=50)
@given(st.data(), shapes(), st.randoms(use_true_random=False))
def test_a_stop_climbs_once_from_wherever_it_is_asked_for(data, shape, rng):
    asked = data.draw(positions(shape))
    job = Forest(shape, {}, rng=rng)
    for position in [*asked, *asked]:
        job.at(position).request_stop()
        job.go_on(rng.randrange(4))
    job.go_on()
    informed = on_the_way(shape, asked)
    assert {host for host, tree in job.trees.items() if tree.is_stop_requested} == informed
    assert sorted((a, b) for a, b, _ in job.delivered) == sorted(
        (host, shape.parent(host)) for host in informed if host != shape.root
    )
    assert all(message == STOP for _, _, message in job.delivered)


def test_only_those_below_can_ask_for_a_stop():
    job = forest(4)
    for stranger in train(0, 2, 3):
        with pytest.raises(Malformed, match=f"host {stranger} is not below this one"):
            job.at(2).hear_up(stranger, STOP)
    assert not job.at(2).is_stop_requested and job.post == {}


def test_a_stop_waits_for_nobody_and_completes_nothing():
    job = forest(2)
    job.contribute(10)
    job.at(1).request_stop()
    assert list(job.post[train(1)[0], train(0)[0]]) == [Up(COUNT, 1, b"10"), STOP]
    job.go_on()
    assert job.root.is_stop_requested
    assert job.complete == [] and job.root.missing(COUNT, 1) == ([0], [])


# ---- down


@settings(max_examples=80)
@given(st.data(), shapes(), st.randoms(use_true_random=False))
def test_what_is_told_reaches_exactly_its_audience(data, shape, rng):
    audience = data.draw(positions(shape))
    job = Forest(shape, {}, audience, rng=rng)
    job.root.tell(NOTE, 1, b"note")
    job.root.tell(ORDER, 2, b"order")
    job.go_on()
    everywhere = {position: job.announced(position, 1) for position in range(shape.size)}
    assert everywhere == {position: b"note" if position in audience else None for position in range(shape.size)}
    assert sorted(job.heard) == sorted((shape.host(position), 2, b"order") for position in audience)
    # a host without anybody of the audience at or below it hears nothing, any other one message from its parent
    hearing = [(shape.parent(host), host) for host in on_the_way(shape, audience) - {shape.root}]
    for message in (Down(NOTE, 1, b"note"), Down(ORDER, 2, b"order")):
        assert sorted((a, b) for a, b, said in job.delivered if said == message) == sorted(hearing)
    assert len(job.delivered) == 2 * len(hearing)


def test_what_is_acted_on_happens_in_the_background_and_is_not_kept():
    job = forest(1, audience=(0,))
    job.root.tell(ORDER, 3, b"go")
    assert job.heard == []
    job.go_on()
    assert job.heard == [(train(0)[0], 3, b"go")] and job.done == ["order of step 3"]
    assert job.announced(0, 3, ORDER) is None


def test_what_is_kept_is_there_at_once_and_by_name_and_step():
    job = forest(1, audience=(0,))
    job.root.tell(NOTE, 3, b"third")
    job.root.keep("other", 3, b"of this host")
    assert job.announced(0, 3) == b"third" and job.announced(0, 3, "other") == b"of this host"
    assert job.announced(0, 2) is None and job.announced(0, 4) is None
    assert job.work == []


def test_a_host_in_the_middle_tells_only_those_below_it():
    job = forest(7, audience=(0, 2, 3, 6))
    job.at(1).tell(NOTE, 1, b"note")
    job.go_on()
    assert [position for position in range(7) if job.announced(position, 1)] == [3]


def test_the_last_steps_of_each_name_are_kept():
    job = forest(2, audience=(0, 1), kept_steps=3)
    job.root.keep("other", 1, b"old")
    for step in range(1, 6):
        job.root.tell(NOTE, step, b"%d" % step)
    job.go_on()
    for position in (0, 1):
        assert [job.announced(position, step) for step in range(1, 7)] == [None, b"2", b"3", b"4", b"5", None]
    assert job.announced(0, 1, "other") == b"old"
    job.root.tell(NOTE, 3, b"again")
    assert job.announced(0, 5) == b"5" and job.announced(0, 3) == b"again"


def test_nothing_is_told_that_the_job_does_not_have_nor_by_anybody_but_the_parent():
    job = forest(4, audience=(0, 1, 2, 3))
    with pytest.raises(Malformed, match="nobody .* 'gossip'"):
        job.at(1).hear_down(train(0)[0], Down("gossip", 1, b""))
    for stranger in train(0, 2, 3):
        with pytest.raises(Malformed, match=f"host {stranger} is not above this one"):
            job.at(3).hear_down(stranger, Down(NOTE, 1, b""))
    with pytest.raises(Malformed, match="host train-1 is not above this one"):
        job.root.hear_down(train(1)[0], Down(NOTE, 1, b""))
    assert job.announced(3, 1) is None and job.announced(0, 1) is None and job.post == {}


# ---- what is gathered and then announced


def test_what_is_told_spreads_from_the_lowest_host_that_has_all_sources_below_it():
    #      0
    #   1     2        sources 3 and 4; the audience is 2, 3 and 4: host 1 knows first, and 0 passes it on
    #  3 4   5 6
    job = forest(7, members={3: [30], 4: [40]}, audience=(2, 3, 4), topics=(ORDER,))
    nought, one, two, three, four = train(0, 1, 2, 3, 4)
    job.at(3).contribute(ORDER, 1, 30, b"30")
    job.at(4).contribute(ORDER, 1, 40, b"40")
    job.go_on()
    both = b"30 40"
    assert sorted((str(a), str(b), type(said).__name__) for a, b, said in job.delivered) == [
        (str(nought), str(two), "Down"),
        (str(one), str(nought), "Up"),
        (str(one), str(three), "Down"),
        (str(one), str(four), "Down"),
        (str(three), str(one), "Up"),
        (str(four), str(one), "Up"),
    ]
    assert sorted(job.heard) == sorted((host, 1, both) for host in (two, three, four))
    assert job.complete == [] and len(job.merges) == 1


def test_what_concerns_nobody_else_stays_below():
    job = forest(7, members={3: [30], 4: [40]}, audience=(1, 3), topics=(ORDER,))
    job.at(3).contribute(ORDER, 1, 30, b"30")
    job.at(4).contribute(ORDER, 1, 40, b"40")
    job.go_on()
    assert train(0)[0] not in {receiver for _, receiver, _ in job.delivered}
    assert sorted(str(host) for host, _, _ in job.heard) == ["train-1", "train-3"]


@settings(max_examples=100)
@given(st.integers(1, 40), st.integers(1, 4), st.data())
def test_the_audience_hears_once_what_all_sources_have_said(size, fan_out, data):
    positions = st.sets(st.integers(0, size - 1), min_size=1)
    sources, audience = data.draw(positions), tuple(sorted(data.draw(positions)))
    job = forest(size, fan_out=fan_out, members={at: [at] for at in sources}, audience=audience, topics=(ORDER,))
    for at in data.draw(st.permutations(sorted(sources))):
        job.at(at).contribute(ORDER, 1, at, b"%d" % at)
        job.go_on(data.draw(st.integers(0, 3)))
    job.go_on()
    assert sorted(str(host) for host, _, _ in job.heard) == sorted(str(job.hosts[at]) for at in audience)
    assert {frozenset(said.split()) for _, _, said in job.heard} == {frozenset(b"%d" % at for at in sources)}
