"""Shares in whole jobs without sockets, in any order of events: every row arrives once, and nothing is left behind."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.pipeline.meshes import Mesh
from rljob_api.tests.builders import TWO_GROUPS, make_plan
from rljob_worker.batch import Batch
from rljob_worker.batch.row_index import RowIndex
from rljob_worker.databuffer.protocol.errors import Malformed, OutOfOrder
from rljob_worker.databuffer.protocol.peer_side import RowsOffered, RowsTaken
from rljob_worker.databuffer.protocol.worker_calls import ReserveRows, SealRows
from rljob_worker.databuffer.pull.consuming import why_not_ready
from rljob_worker.databuffer.pull.edges import SharePhase
from rljob_worker.databuffer.routes.assignment import ProducerLayout
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.rows.arrangement import Header
from rljob_worker.databuffer.rows.segment import Views, contents_of, plan_contents, write
from rljob_worker.databuffer.rows.tests.batches import same
from rljob_worker.databuffer.server.buffer import largest_step
from rljob_worker.databuffer.tests.gang import group, part, plan_of, rows, stage, two_stages
from rljob_worker.databuffer.tests.simulation.by_hand import Job, workers
from rljob_worker.errors import DeadlineExceeded

EDGE = "a->b"
COLUMNS = ("ids", "score")


def producers(job):
    return workers("rollout", range(job.plan.group("rollout").num_workers))


def consumers(job):
    return workers("train", range(job.plan.group("train").num_workers))


def plan_ahead(staleness, producers=(1, 1), consumers=(1, 1), **options):
    """Producers may be ahead by so many steps."""
    plan = two_stages(producers, consumers, **options)
    rollout = plan.spec.rollout.model_copy(update={"max_staleness": staleness})
    return plan.model_copy(update={"spec": plan.spec.model_copy(update={"rollout": rollout})})


def put_all(job, step, scattered=None):
    made = producers(job)
    for index, worker in enumerate(made):
        mine = part(job.plan, step, index, len(made)) if scattered is None else scattered[index]
        assert job.put(worker, step, EDGE, mine), f"no room for {worker}"


def want_all(job, step):
    return [job.want(worker, step, EDGE) for worker in consumers(job)]


def take_all(job, step):
    """What every consumer gets, copied and given back."""
    got = []
    for worker in consumers(job):
        result = job.get(worker, step, EDGE)
        assert result is not None, [share.phase for _, share in want_all(job, step)]
        got.append(result.take(np.arange(len(result))))
    for worker in consumers(job):
        job.release(worker, step, EDGE)
    return got


sizes = st.tuples(st.integers(1, 4), st.integers(1, 3))


@settings(max_examples=10)
@given(
    sizes,
    sizes,
    st.sampled_from(["None", "Tokens"]),
    st.booleans(),
    st.integers(1, 9),
    st.integers(0, 2**32),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([0, 300, 1 << 16]),
)
def test_every_row_arrives_once_in_any_order_of_events(
    made, used, balance, groups, batch_size, seed, consumers_first, breaks, few_bytes
):
    plan = two_stages(made, used, balance=balance, needs_groups=groups, batch_size=batch_size)
    job = Job(plan, seed=seed, streams_that_break=breaks, few_bytes=few_bytes)
    for step in (1, 2, 3):
        if consumers_first:
            want_all(job, step)
            job.go_on(job.random.randrange(10))
        put_all(job, step)
        want_all(job, step)
        job.go_on()
        got = take_all(job, step)
        job.go_on()
        assert same(Batch.concat(got), part(plan, step, 0, 1).select(COLUMNS))
    assert job.held_bytes() == {}


@settings(max_examples=12)
@given(st.integers(0, 2**32), st.sampled_from(["None", "Tokens"]))
def test_peers_of_a_copy_read_the_same_rows_wherever_they_are(seed, balance):
    job = Job(two_stages((2, 1), (4, 2), tp=4, balance=balance), seed=seed)
    put_all(job, 1)
    want_all(job, 1)
    job.go_on()
    got = take_all(job, 1)
    assert all(same(got[0], other) for other in got[1:4]) and all(same(got[4], other) for other in got[5:])
    job.go_on()
    assert job.held_bytes() == {}


@settings(max_examples=10)
@given(st.integers(0, 2**32))
def test_rows_that_lie_anywhere_find_their_share_also_a_share_without_rows(seed):
    plan = two_stages((2, 2), (3, 1), batch_size=1, group_size=2, producer_balance="Tokens", balance="Tokens")
    job = Job(plan, seed=seed)
    whole = part(plan, 1, 0, 1)
    put_all(job, 1, [whole.take([]), whole.take([1]), whole.take([0]), whole.take([])])
    want_all(job, 1)
    job.go_on()
    got = take_all(job, 1)
    # two rows for three shares; the empty one knows the columns all the same
    assert sorted(len(batch) for batch in got) == [0, 1, 1]
    assert all(batch["ids"].dtype == "int64" and batch["score"].dtype == "float32" for batch in got)
    job.go_on()
    assert job.held_bytes() == {}


@settings(max_examples=12)
@given(st.integers(1, 3), st.integers(1, 3), st.sampled_from(["None", "Tokens"]), st.integers(0, 2**32))
def test_rows_stay_on_their_host_or_leave_it_between_stages_of_one_group(hosts, workers_per_host, balance, seed):
    size = hosts * workers_per_host
    stages = [stage("a", "train", Mesh(dp=size)), stage("b", "train", Mesh(dp=size), balance)]
    plan = plan_of([group("train", hosts, workers_per_host, ["a", "b"])], stages, {EDGE: COLUMNS}, batch_size=12)
    job = Job(plan, seed=seed)
    everybody = workers("train", range(size))
    for step in (1, 2, 3):
        for index, worker in enumerate(everybody):
            assert job.put(worker, step, EDGE, part(plan, step, index, size))
            job.want(worker, step, EDGE)
            job.go_on(job.random.randrange(6))
        job.go_on()
        assert same(Batch.concat(take_all(job, step)), part(plan, step, 0, 1).select(COLUMNS))
        job.go_on()
    assert job.held_bytes() == {}


def test_a_share_that_is_not_there_says_what_it_waits_for():
    job = Job(two_stages((2, 1), (1, 1)))
    ((state, share),) = want_all(job, 1)
    segments = job.buffer(Host("train", 0)).segments
    head = "stage b waited 2.5 s for rows of edge a->b, step 1. "
    assert why_not_ready(state, share, segments, 2.5, ["x", "y"]) == head + "Missing: x; y"
    assert why_not_ready(state, share, segments, 2.5, []) == head + "Everything has been offered"
    share.phase, share.left, share.remote_bytes = SharePhase.DATA, {Host("rollout", 1), Host("rollout", 0)}, 1234
    on_the_way = "On the way: rows of host rollout-0, rollout-1; 1,234 bytes have come so far"
    assert why_not_ready(state, share, segments, 2.5, []) == head + on_the_way


def test_a_part_that_is_a_share_is_read_where_it_lies():
    job = Job(plan_of([group("train", 1, 1, ["a", "b"])], in_one_place(), {EDGE: COLUMNS}))
    me = WorkerId("train", 0)
    host = job.buffer_of(me)
    assert job.put(me, 1, EDGE, part(job.plan, 1, 0, 1))
    before = host.segments.memory.used
    job.want(me, 1, EDGE)
    job.go_on()
    result = job.get(me, 1, EDGE)
    assert result is not None and np.shares_memory(result["ids"].values, host.memory)
    assert host.segments.memory.used == before
    job.release(me, 1, EDGE)
    assert job.held_bytes() == {}


def in_one_place(balance="None"):
    return [stage("a", "train", Mesh()), stage("b", "train", Mesh(), balance)]


# ---- offers and streams


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(0, 4))
def test_streams_that_break_are_asked_for_again(seed, breaks):
    job = Job(two_stages((4, 1), (1, 2), batch_size=8), seed=seed, streams_that_break=breaks)
    want_all(job, 1)
    for index, worker in enumerate(producers(job)):
        assert job.put(worker, 1, EDGE, part(job.plan, 1, index, 4))
        job.go_on(job.random.randrange(12))
    job.go_on()
    assert same(Batch.concat(take_all(job, 1)), part(job.plan, 1, 0, 1).select(COLUMNS))
    job.go_on()
    assert job.held_bytes() == {}


class Walked(dict):
    """Counts how often somebody goes through all of it."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()

    def items(self):
        self.times += 1
        return super().items()


def test_an_offer_does_not_look_at_all_that_came_before_it():
    job = Job(two_stages((40, 1), (1, 1), batch_size=40, group_size=1))
    _, share = job.want(consumers(job)[0], 1, EDGE)
    share.offers = Walked()
    for index, worker in enumerate(producers(job)[:39]):
        job.put(worker, 1, EDGE, part(job.plan, 1, index, 40))
        job.go_on()
    assert len(share.offers) == 39 and share.offers.times == 0


# ---- few rows


@pytest.mark.parametrize("balance", ["None", "Tokens"])
@pytest.mark.parametrize("spare, streams", [(0, 0), (-1, 2)])
def test_few_rows_come_with_their_offer_and_one_byte_more_is_fetched(balance, spare, streams):
    plan = two_stages((2, 1), (1, 1), balance=balance, batch_size=4, group_size=1)
    # two rows of a host: 2 * (24 of the index + 8 of an offset + 3 * 8 of ids + 4 of score) = 120
    job = Job(plan, few_bytes=120 + spare)
    put_all_of_three(job)
    want_all(job, 1)
    job.go_on()
    assert len(job.streamed) == streams
    assert same(take_all(job, 1)[0], part(plan, 1, 0, 1, [3] * 4).select(COLUMNS))
    job.go_on()
    assert job.held_bytes() == {}


def put_all_of_three(job):
    for index, worker in enumerate(producers(job)):
        assert job.put(worker, 1, EDGE, part(job.plan, 1, index, 2, [3] * 4))


# ---- wide, and under pressure


@pytest.mark.parametrize("percent", [30, 60, 90])
@pytest.mark.parametrize("balance", ["None", "Tokens"])
def test_shares_that_fill_the_arena_arrive_however_many_sources_there_are(percent, balance):
    # 40 hosts of one row each to one rank; the share takes so much of the arena of its host
    lengths = [percent * 250] * 40  # of 8 bytes: 40 rows of 2,000 bytes per percent are 80,000 of a million
    plan = two_stages((40, 1), (1, 1), balance=balance, batch_size=40, group_size=1)
    job = Job(plan, capacity=8_100_000, seed=percent, fan_out=32)
    want_all(job, 1)
    for index, worker in enumerate(producers(job)):
        assert job.put(worker, 1, EDGE, part(plan, 1, index, 40, lengths))
        job.go_on(7)
    job.go_on()
    assert same(take_all(job, 1)[0], part(plan, 1, 0, 1, lengths).select(COLUMNS))
    job.go_on()
    assert job.held_bytes() == {}


@settings(max_examples=4)
@given(st.integers(0, 2**32), st.sampled_from(["None", "Tokens"]))
def test_eight_shares_that_fill_nine_tenths_of_an_arena_all_find_room(seed, balance):
    # 32 rows of 5,000 values of 8 bytes on 16 hosts: 8 shares of 160,000 bytes and a little, 40 pages each, of 350
    lengths = [5_000] * 32
    plan = two_stages((16, 1), (1, 8), balance=balance, batch_size=32, group_size=1)
    job = Job(plan, capacity=350 * 4096, seed=seed)
    want_all(job, 1)
    for index, worker in enumerate(producers(job)):
        assert job.put(worker, 1, EDGE, part(plan, 1, index, 16, lengths))
        job.go_on(job.random.randrange(12))
    job.go_on()
    assert same(Batch.concat(take_all(job, 1)), part(plan, 1, 0, 1, lengths).select(COLUMNS))


def test_shares_of_one_host_take_turns_when_there_is_room_for_one():
    # the part takes 137 pages, all there are; each of its halves takes 69
    job = Job(two_stages((1, 1), (1, 2), batch_size=2, group_size=1), capacity=137 * 4096)
    assert job.put(WorkerId("rollout", 0), 1, EDGE, part(job.plan, 1, 0, 1, [35_000, 35_000]))
    want_all(job, 1)
    job.go_on()
    phases = sorted(share.phase.name for _, share in want_all(job, 1))
    assert phases == ["READY", "ROOM"]
    state, waiting = next((state, share) for state, share in want_all(job, 1) if share.phase is SharePhase.ROOM)
    words = why_not_ready(state, waiting, job.buffer(Host("train", 0)).segments, 2.0, [])
    assert "no room for share" in words and "not yet read by rank" in words
    ready = next(worker for worker in consumers(job) if job.get(worker, 1, EDGE) is not None)
    job.release(ready, 1, EDGE)
    job.go_on()
    (other,) = [worker for worker in consumers(job) if worker != ready]
    assert job.get(other, 1, EDGE) is not None


# ---- who may be how far ahead


@pytest.mark.parametrize(("spill", "expected_ahead"), [(0, 2), (100 * 4096, 3)])
def test_ranks_that_run_ahead_leave_room_for_the_parts_of_a_straggler(spill, expected_ahead):
    # a part of 8 rows of 1,900 ids of 8 bytes takes 30 pages: 95 pages hold three, the spill file three more.
    # step 3 would leave 5 pages of memory, and perhaps 100 on disk, for the straggler's two parts (60);
    # step 4 goes to disk and would leave 70 pages there for its three (90)
    plan, lengths = plan_ahead(2, (1, 2), (1, 2), balance="Tokens"), [1_900] * 80
    job = Job(plan, capacity=95 * 4096, spill=spill)
    straggler, fast = producers(job)
    num_ahead = 0
    while job.put(fast, num_ahead + 1, EDGE, part(plan, num_ahead + 1, 1, 2, lengths)):
        num_ahead += 1
    assert num_ahead == expected_ahead
    for step in (1, 2):
        assert job.put(straggler, step, EDGE, part(plan, step, 0, 2, lengths))
        want_all(job, step)
        job.go_on()
        assert same(Batch.concat(take_all(job, step)), part(plan, step, 0, 1, lengths).select(COLUMNS))
        job.go_on()
    assert job.put(fast, num_ahead + 1, EDGE, part(plan, num_ahead + 1, 1, 2, lengths))


def test_a_rank_kept_back_for_a_straggler_says_so():
    job = Job(two_stages((1, 2), (1, 2), balance="Tokens"), capacity=80 * 4096)
    fast, lengths = producers(job)[1], [1_900] * 64
    assert job.put(fast, 1, EDGE, part(job.plan, 1, 1, 2, lengths))
    asked = ReserveRows(edge=EDGE, step=2, num_bytes=30 * 4096, waited=7.0, seconds=7.0)
    with pytest.raises(DeadlineExceeded, match="122,880 bytes are kept for parts of earlier steps"):
        job.buffer_of(fast).producing.reserve(fast, asked)


def test_nobody_puts_a_step_before_the_one_two_steps_back_has_been_read():
    job = Job(two_stages((1, 1), (1, 1)))
    me = WorkerId("rollout", 0)
    assert job.put(me, 1, EDGE, part(job.plan, 1, 0, 1)) and job.put(me, 2, EDGE, part(job.plan, 2, 0, 1))
    job.go_on()
    with pytest.raises(DeadlineExceeded, match="readers 2 steps behind: part 0 of edge a->b, step 1, not yet read"):
        late_reserve(job, me, 3)
    want_all(job, 1)
    job.go_on()
    assert job.put(me, 3, EDGE, part(job.plan, 3, 0, 1))


def late_reserve(job, worker, step):
    """A reservation whose time is up."""
    host = job.buffer_of(worker)
    host.producing.reserve(worker, ReserveRows(edge=EDGE, step=step, num_bytes=1, waited=5.0, seconds=5.0))


@pytest.mark.parametrize("balance", ["None", "Tokens"])
def test_a_consumer_that_is_behind_still_finds_all_its_steps(balance):
    job = Job(two_stages((2, 1), (2, 1), balance=balance))
    quick, slow = consumers(job)
    for step in range(1, 7):
        # the quick one has read everything, the slow one's host has its rows and its worker is two steps behind
        put_all(job, step)
        want_all(job, step)
        job.go_on()
        assert job.get(quick, step, EDGE) is not None
        job.release(quick, step, EDGE)
        if step > 2:
            assert job.get(slow, step - 2, EDGE) is not None
            job.release(slow, step - 2, EDGE)


def test_rows_that_were_given_back_are_not_read_again():
    job = Job(two_stages((1, 1), (1, 1)))
    (me,) = consumers(job)
    put_all(job, 1)
    want_all(job, 1)
    job.go_on()
    assert job.get(me, 1, EDGE) is not None
    job.release(me, 1, EDGE)
    with pytest.raises(OutOfOrder, match="rank 0 asks for share 0 of edge a->b, step 1 again, which it has released"):
        job.get(me, 1, EDGE)


def test_a_step_that_is_over_is_forgotten_and_says_so():
    job = Job(two_stages((1, 1), (1, 1)))
    (me,) = consumers(job)
    for step in range(1, 6):
        put_all(job, step)
        want_all(job, step)
        job.go_on()
        take_all(job, step)
        job.go_on()
    with pytest.raises(OutOfOrder, match="step 2 of edge a->b is over: step 5 is here"):
        job.get(me, 2, EDGE)
    assert [state.step for state in job.buffer_of(me).edges.steps(EDGE)] == [3, 4, 5]


# ---- on disk


@settings(max_examples=5)
@given(sizes, sizes, st.sampled_from(["None", "Tokens"]), st.integers(0, 40), st.integers(0, 2**32))
def test_every_row_arrives_once_where_memory_is_short_and_the_disk_takes_the_rest(made, used, balance, pages, seed):
    # 24 rows of 2,000 values of 8 bytes: 384,000 bytes and a little, of which the memory holds up to 160 kB
    plan = two_stages(made, used, balance=balance, batch_size=12)
    job = Job(plan, capacity=pages * 4096, spill=1 << 20, seed=seed)
    for step in (1, 2):
        lengths = dict.fromkeys(range((step - 1) * 24, step * 24), 2_000)
        for index, worker in enumerate(producers(job)):
            assert job.put(worker, step, EDGE, part(plan, step, index, len(producers(job)), lengths))
        want_all(job, step)
        job.go_on()
        assert same(Batch.concat(take_all(job, step)), part(plan, step, 0, 1, lengths).select(COLUMNS))
        job.go_on()
    assert job.held_bytes() == {}


@pytest.mark.parametrize(("capacity", "is_small"), [(1 << 20, True), (0, False)])
def test_little_that_goes_to_disk_is_not_done_by_whoever_brings_the_offer(capacity, is_small):
    job = Job(two_stages((1, 1), (1, 1)), capacity=capacity, spill=1 << 20)
    put_all(job, 1)
    want_all(job, 1)
    job.go_on()
    assert ("lay-out of edge a->b, step 1" in job.submitted) is not is_small
    take_all(job, 1)


def test_what_no_place_can_ever_hold_beside_inputs_is_refused_at_once():
    """b reads 300,000 bytes and writes for c: into 500,000 of memory, or 400,000 of disk, or neither."""
    stages = [stage("a", "train", Mesh()), stage("b", "train", Mesh()), stage("c", "train", Mesh(), "Tokens")]
    edges = {EDGE: ["ids"], "b->c": ["ids"]}
    plan = plan_of([group("train", 1, 1, ["a", "b", "c"])], stages, edges, batch_size=1, group_size=1)
    job = Job(plan, capacity=500_000, spill=400_000)
    me = WorkerId("train", 0)
    assert job.put(me, 1, EDGE, rows([0], 1, [37_000]))
    job.want(me, 1, EDGE)
    job.go_on()
    assert job.get(me, 1, EDGE) is not None
    with pytest.raises(DeadlineExceeded, match="leaves 499,712 bytes for rows and dataBuffer.spill 397,312 in one"):
        job.put(me, 1, "b->c", rows([0], 1, [50_000]))
    assert job.put(me, 1, "b->c", rows([0], 1, [49_000]))


# ---- room that cannot come free


def test_a_share_that_never_fits_is_refused_at_once_everywhere():
    """Six parts of 73 pages are one share of 435, for which there are 122 in memory and 97 on disk."""
    job = Job(two_stages((6, 1), (1, 1), batch_size=6, group_size=1), capacity=500_000, spill=400_000)
    want_all(job, 1)
    for index, worker in enumerate(producers(job)):
        assert job.put(worker, 1, EDGE, part(job.plan, 1, index, 6, [37_000] * 6))
    job.go_on()
    words = (
        "no room for share 0 of edge a->b, step 1: 1,776,320 bytes, so waiting cannot help. dataBuffer.memory leaves "
        "499,712 bytes for rows and dataBuffer.spill 397,312 in one piece; this step needs at least 1,777,664: raise "
        "dataBuffer.spill.limit"
    )
    for worker in (*producers(job), *consumers(job)):
        with pytest.raises(DeadlineExceeded, match=f"^{words}$"):
            job.buffer_of(worker).monitor.check()


def test_a_share_that_does_not_fit_beside_its_own_parts_is_refused_at_once():
    """Two parts of 73 pages on the host that reads them as one, in an arena of 200."""
    stages = [stage("a", "train", Mesh(dp=2)), stage("b", "train", Mesh(dp=1, tp=2))]
    plan = plan_of([group("train", 1, 2, ["a", "b"])], stages, {EDGE: COLUMNS}, batch_size=2, group_size=1)
    job = Job(plan, capacity=200 * 4096)
    for rank in range(2):
        assert job.put(WorkerId("train", rank), 1, EDGE, rows([rank], 1, {rank: 37_000}))
    want_all(job, 1)
    job.go_on()
    with pytest.raises(
        DeadlineExceeded, match="592,320 bytes, while 598,016 bytes in the same data buffer hold rows of"
    ):
        job.buffer_of(WorkerId("train", 0)).monitor.check()


def test_inputs_of_the_same_step_are_no_room_to_wait_for():
    """b reads 300,000 bytes and writes 300,000 for c, in an arena of 500,000: its input is given back at the end."""
    stages = [stage("a", "train", Mesh()), stage("b", "train", Mesh()), stage("c", "train", Mesh(), "Tokens")]
    plan = plan_of(
        [group("train", 1, 1, ["a", "b", "c"])], stages, {EDGE: ["ids"], "b->c": ["ids"]}, batch_size=1, group_size=1
    )
    job = Job(plan, capacity=500_000)
    me = WorkerId("train", 0)
    batch = rows([0], 1, [37_000])
    assert job.put(me, 1, EDGE, batch)
    job.want(me, 1, EDGE)
    job.go_on()
    assert job.get(me, 1, EDGE) is not None
    with pytest.raises(DeadlineExceeded, match="are inputs of this step or wait for stages.*waiting cannot help"):
        job.put(me, 1, "b->c", batch)


def test_only_its_own_input_blocks_a_worker_whose_neighbours_go_on_without_it():
    """Rollout's two workers read 20,000 values each, 40 pages, and put what `u` reads; nobody of the group trains."""
    stages = [stage("t", "train", Mesh()), stage("b", "rollout", Mesh(dp=2)), stage("u", "train", Mesh())]
    groups = [group("rollout", 1, 2, ["b"]), group("train", 1, 1, ["t", "u"])]
    plan = plan_of(groups, stages, {"t->b": ["ids"], "b->u": ["ids"]}, batch_size=2, group_size=1)
    job = Job(plan, capacity=97 * 4096)
    assert job.put(WorkerId("train", 0), 1, "t->b", rows([0, 1], 1, [20_000] * 2))
    first, second = workers("rollout", range(2))
    for worker in (first, second):
        job.want(worker, 1, "t->b")
    job.go_on()
    assert all(job.get(worker, 1, "t->b") is not None for worker in (first, second))
    # besides its own 40 pages there is room for 40 more, as soon as the other's input is given back
    assert not job.put(first, 1, "b->u", rows([0], 1, [20_000]))
    job.release(second, 1, "t->b")
    assert job.put(first, 1, "b->u", rows([0], 1, [20_000]))
    with pytest.raises(DeadlineExceeded, match="waiting cannot help"):
        job.put(first, 1, "b->u", rows([0], 1, [30_000]))


def test_who_has_no_part_of_an_edge_is_told_so():
    job = Job(two_stages((1, 1), (1, 1)))
    (me,) = consumers(job)
    host = job.buffer_of(me)
    with pytest.raises(AssertionError, match="rank 0 of group train puts nothing on edge a->b"):
        late_reserve(job, me, 1)
    with pytest.raises(AssertionError, match="rank 0 of group train puts nothing on edge a->b"):
        host.producing.seal(me, SealRows(edge=EDGE, step=1, offset=0, contents=plan_contents(0, {})))


def test_what_a_worker_has_put_is_unread_until_everybody_has_it():
    job = Job(two_stages((1, 2), (1, 1)))
    first, second = producers(job)
    host = job.buffer_of(first)
    for index, worker in enumerate((first, second)):
        assert job.put(worker, 1, EDGE, part(job.plan, 1, index, 2))
    assert [[s.item.number for s in host.producing.unread(worker)] for worker in (first, second)] == [[0], [1]]
    assert "part 1 of edge a->b, step 1, not yet read by host train-0" in str(host.producing.late_readers(second, 2.0))
    want_all(job, 1)
    job.go_on()
    assert host.producing.unread(first) == [] and host.producing.unread(second) == []


def test_what_other_groups_still_read_can_come_free():
    job = Job(two_stages((1, 1), (1, 1), batch_size=1, group_size=1), capacity=500_000)
    me = WorkerId("rollout", 0)
    assert job.put(me, 1, EDGE, rows([0], 1, [37_000] * 2))
    assert not job.put(me, 2, EDGE, rows([1], 1, [37_000] * 2))  # not yet, and no error
    want_all(job, 1)
    job.go_on()
    assert job.put(me, 2, EDGE, rows([1], 1, [37_000] * 2))


# ---- what makes no sense


def offered_by(job, host, row_ids):
    """What a host holds of some rows of step 1."""
    batch = rows(row_ids, 2).select(COLUMNS)
    return Header.of(Views(batch.index, batch.columns), np.arange(len(batch)))


@pytest.mark.parametrize(
    "share, host, row_ids, words",
    [
        (2, 0, [0], "nobody of host train-0 reads share 2"),
        (0, 7, [0], "nobody of host rollout-7 puts rows on edge a->b"),
        # 8 groups of two rows: rollout-0 has the first four, of which share 0 gets three
        (0, 0, [8], "rollout-0 offered rows that are not of step 1, share 0 and this host"),
        (0, 0, [16], "rollout-0 offered rows that are not of step 1, share 0 and this host"),
        (0, 0, [6], "rollout-0 offered rows that are not of step 1, share 0 and this host"),
    ],
)
def test_offers_that_cannot_be_so_are_malformed(share, host, row_ids, words):
    job = Job(two_stages((2, 1), (3, 1)))
    here, sender = job.buffer(Host("train", 0)), Host("rollout", host)
    state = here.edges.at(EDGE, 1)
    with pytest.raises(Malformed, match=f"^{words}$"):
        here.consuming.offered(state, share, sender, offered_by(job, sender, row_ids))
    here.consuming.offered(state, 0, Host("rollout", 0), offered_by(job, sender, [0, 1, 5]))
    with pytest.raises(Malformed, match="^rollout-0 offered share 0 of edge a->b, step 1 twice$"):
        here.consuming.offered(state, 0, Host("rollout", 0), offered_by(job, sender, [0]))


def test_an_offer_of_other_columns_than_the_edge_has_is_malformed():
    job = Job(two_stages((1, 1), (1, 1), columns=("ids",)))
    here = job.buffer(Host("train", 0))
    with pytest.raises(Malformed, match=r"^columns ids, score; edge a->b has \('ids',\)$"):
        here.consuming.offered(here.edges.at(EDGE, 1), 0, Host("rollout", 0), offered_by(job, None, [0]))


@pytest.mark.parametrize("changed", ["row_ids", "group_ids", "num_tokens"])
def test_rows_other_than_the_layout_says_are_malformed(changed):
    job = Job(two_stages((2, 1), (1, 1), balance="Tokens"))
    here, headers = job.buffer(Host("train", 0)).consuming, []
    offered = here.offered

    def lie(state, number, host, header, rows=b""):
        headers.append(header)
        if host == Host("rollout", 1):
            values = getattr(header.index, changed).copy()
            values[3] += 1
            header = replace(header, index=replace(header.index, **{changed: values}))
        offered(state, number, host, header, rows)

    here.offered = lie
    put_all(job, 1)
    want_all(job, 1)
    job.go_on()
    assert len(headers) == 2
    with pytest.raises(Malformed, match="^rollout-1 offered other rows for share 0 of edge a->b, step 1 than its lay"):
        job.buffer(Host("train", 0)).monitor.check()


@pytest.mark.parametrize("row_id, group_id, part", [(16, 8, 0), (1, 1, 0), (0, 0, 2), (0, 0, -1)])
def test_a_layout_that_cannot_be_so_is_malformed(row_id, group_id, part):
    job = Job(two_stages((2, 1), (1, 1), balance="Tokens"))
    layout = ProducerLayout(np.array([part]), RowIndex(np.array([row_id]), np.array([group_id]), np.array([1])))
    with pytest.raises(Malformed, match="^the layout of edge a->b, step 1, has rows of another step, group or part$"):
        job.buffer(Host("train", 0)).producing.assigned(EDGE, 1, layout.to_bytes())


@pytest.mark.parametrize("step", [1, 2])
def test_a_part_is_put_once_and_a_second_process_leaves_nothing_behind(step):
    job = Job(two_stages((1, 1), (1, 1)))
    (first,) = producers(job)
    for index in range(1, 6 if step == 1 else 3):
        put_all(job, index)
        want_all(job, index)
        job.go_on()
        take_all(job, index)
        job.go_on()
    # step 1 is over and forgotten then, step 2 is not
    with pytest.raises(
        OutOfOrder, match="put before, .*one process of rank 0 of group rollout|step 1 of edge a->b is over"
    ):
        job.put(first, step, EDGE, part(job.plan, step, 0, 1))
    assert job.held_bytes() == {}


def test_a_part_that_is_being_put_gets_no_second_room_and_is_sealed_by_who_has_the_first():
    job = Job(two_stages((1, 1), (1, 1)))
    (me,) = producers(job)
    producing, mine = job.buffer_of(me).producing, part(job.plan, 1, 0, 1).select(COLUMNS)
    contents = contents_of(mine)
    asked = ReserveRows(edge=EDGE, step=1, num_bytes=contents.num_bytes, waited=0.0, seconds=1.0)
    room = producing.reserve(me, asked)
    sealed = SealRows(edge=EDGE, step=1, offset=room.offset, contents=contents)
    write(job.buffer_of(me).memory, room.offset, contents, mine)
    with pytest.raises(OutOfOrder, match="part 0 of edge a->b, step 1 was put before, or is being put: one process of"):
        producing.reserve(me, asked)
    with pytest.raises(OutOfOrder, match="was put before, or has no room at 4096: one process of rank 0 of group roll"):
        producing.seal(me, SealRows(edge=EDGE, step=1, offset=room.offset + 4096, contents=contents))
    producing.seal(me, sealed)
    with pytest.raises(OutOfOrder, match="part 0 of edge a->b, step 1 was put before, or has no room at 0"):
        producing.seal(me, sealed)
    want_all(job, 1)
    job.go_on()
    assert same(take_all(job, 1)[0], mine)
    job.go_on()
    assert job.held_bytes() == {}


def test_rows_of_ranks_that_a_part_does_not_feed_are_no_secret():
    job = Job(two_stages((2, 1), (2, 1)))
    with pytest.raises(AssertionError, match=r"has rows of ranks \[1\]; by ordinal it feeds \[0\]"):
        job.put(WorkerId("rollout", 0), 1, EDGE, part(job.plan, 1, 1, 2))


def test_messages_between_two_hosts_are_one_offer_and_one_receipt_for_each_share():
    job = Job(two_stages((3, 2), (1, 2), balance="Tokens", batch_size=12))
    put_all(job, 1)
    want_all(job, 1)
    job.go_on()
    offers = [(str(sender), message.share) for sender, _, message in job.delivered if isinstance(message, RowsOffered)]
    taken = [message.shares for _, _, message in job.delivered if isinstance(message, RowsTaken)]
    assert sorted(offers) == [(f"rollout-{host}", share) for host in range(3) for share in range(2)]
    assert sorted(taken) == [(0,)] * 3 + [(1,)] * 3


def fetched(job, step):
    """How far the share of the only consumer is, which this does not ask for."""
    (worker,) = consumers(job)
    state = job.buffer_of(worker).edges.find(EDGE, step)
    return None if state is None else state.share(0).phase


def with_the_first_step_asked_for(staleness, capacity):
    """Producers have put as many steps as they may be ahead by, and one more."""
    job = Job(plan_ahead(staleness), capacity=capacity)
    for step in range(1, staleness + 3):
        put_all(job, step)
    job.go_on()
    want_all(job, 1)
    job.go_on()
    return job


def take_in_order(job, num_steps):
    for step in range(1, num_steps + 1):
        want_all(job, step)
        job.go_on()
        take_all(job, step)
    job.go_on()
    assert job.held_bytes() == {}


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_rows_of_steps_that_producers_may_be_ahead_by_are_fetched_before_anybody_asks(staleness):
    job = with_the_first_step_asked_for(staleness, 4 << 20)
    assert [fetched(job, step) for step in range(1, staleness + 2)] == [SharePhase.READY] * (staleness + 1)
    assert fetched(job, staleness + 2) is SharePhase.OFFERS, "the step after those"
    if staleness:
        ((_, share),) = want_all(job, 2)
        assert share.producer_seconds == 0.0, "its rows were offered before it was asked for"
    take_in_order(job, staleness + 2)


def test_what_is_fetched_ahead_leaves_the_room_that_a_step_needs():
    plan = plan_ahead(2)
    assert largest_step(plan, "train") == 1_901_704
    # which is all there is: what is here of step 1 is in the way of fetching more
    job = with_the_first_step_asked_for(2, 1_901_704)
    assert [fetched(job, step) for step in (1, 2, 3)] == [SharePhase.READY, SharePhase.OFFERS, SharePhase.OFFERS]
    take_in_order(job, 4)


def test_where_rows_have_columns_of_unknown_size_nothing_is_fetched_ahead():
    texts_cross = (
        "dag={stages: [{name: rollout, run: Rollout, group: rollout}, "
        "{name: reward, run: Reward, after: [rollout], group: train}, "
        "{name: advantage, run: Advantage, after: [reward], group: train}, "
        "{name: update, run: UpdatePolicy, after: [advantage], group: train}]}"
    )
    options = [*TWO_GROUPS, "algorithm.kl.coefficient=0"]
    assert largest_step(make_plan(*options), "train") is not None
    assert largest_step(make_plan(*options, texts_cross), "train") is None
