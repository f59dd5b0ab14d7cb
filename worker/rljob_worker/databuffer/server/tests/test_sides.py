"""What a data buffer answers to its workers and to its peers, without servers: train-0 of a job in which rollout-0 puts
and train gets; its neighbours are never reached."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_api.planning.plan import Plan
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.batch import Batch
from rljob_worker.batch.arrow import from_arrow
from rljob_worker.batch.column_kind import column_kind_of
from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.links.links import LinkSettings
from rljob_worker.databuffer.protocol import peer_side as peer
from rljob_worker.databuffer.protocol import worker_answers as say
from rljob_worker.databuffer.protocol import worker_calls as ask
from rljob_worker.databuffer.protocol.errors import Away, Bug, Malformed, OutOfOrder
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.job_tree import OPENING, REPORT, VERDICT
from rljob_worker.databuffer.rows import segment
from rljob_worker.databuffer.rows.arrangement import Header
from rljob_worker.databuffer.rows.stream import stream
from rljob_worker.databuffer.rows.tests.batches import same
from rljob_worker.databuffer.server.buffer import DataBuffer
from rljob_worker.databuffer.server.metrics import BufferMetrics
from rljob_worker.databuffer.server.worker_side import WorkerSide
from rljob_worker.databuffer.store.segment_files import SegmentFile
from rljob_worker.databuffer.tests.gang import TOKEN, part, two_stages
from rljob_worker.errors import BadData, DeadlineExceeded, PeerLost
from rljob_worker.metrics.report import StepReport, report_from_bytes, report_to_bytes
from rljob_worker.tests.waiting import wait_for

EDGE = "a->b"
TRAIN, ROLLOUT = Host("train", 0), Host("rollout", 0)


class One:
    """A data buffer, its workers, and the messages that it would send."""

    def __init__(self, plan: Plan, here: Host, directory: Path) -> None:
        self.plan, self.here = plan, here
        arena = SegmentFile(directory / f"{here}-life", 1 << 20)
        identity = Identity(TOKEN, 1, plan.hash(), here.group, here.index)
        book = AddressBook(str(directory / "peers.json"), plan.job)
        self.memory = np.zeros(arena.num_bytes, np.uint8)
        links = LinkSettings(address_book=book, identity=identity, retry_seconds=60.0, start_seconds=60.0)
        self.buffer = DataBuffer(plan, [arena], self.memory, BufferMetrics(), links, fan_out=2)
        self.sent: list[tuple[Host, Any]] = []
        self.buffer.links.send = self._send  # type: ignore[method-assign]
        self.answers = WorkerSide(self.buffer)

    def _send(self, host: Host, *messages: Any) -> None:
        self.sent += [(host, message) for message in messages]

    def ask(self, rank: int, request: Any) -> Any:
        caller = Identity(TOKEN, 1, self.plan.hash(), self.here.group, self.here.index, rank)
        return self.answers(caller, request)

    def hear(self, sender: Host, message: Any) -> None:
        self.buffer.peer_side.hears(sender, message)

    def put(self, rank: int, step: int, batch: Batch) -> None:
        chosen = batch.select(["ids", "score"])
        contents = segment.contents_of(chosen)
        room = self.ask(
            rank, ask.ReserveRows(edge=EDGE, step=step, num_bytes=contents.num_bytes, waited=0.0, seconds=1.0)
        )
        assert isinstance(room, say.Reservation)
        segment.write(self.memory, room.offset, contents, chosen)
        assert self.ask(rank, ask.SealRows(edge=EDGE, step=step, offset=room.offset, contents=contents)) == say.Done()

    def kinds(self) -> list[str]:
        return [type(message).__name__ for _, message in self.sent]


def one(tmp_path: Path, here: Host = TRAIN, **options: Any) -> Iterator[One]:
    made = One(two_stages(options.pop("made", (1, 2)), options.pop("used", (1, 2)), **options), here, tmp_path)
    try:
        yield made
    finally:
        made.buffer.links.close()
        made.buffer.close()


@pytest.fixture
def train(tmp_path: Path) -> Iterator[One]:
    yield from one(tmp_path)


@pytest.fixture
def rollout(tmp_path: Path) -> Iterator[One]:
    yield from one(tmp_path, ROLLOUT)


@pytest.fixture
def balanced(tmp_path: Path) -> Iterator[One]:
    yield from one(tmp_path, ROLLOUT, balance="Tokens")


def waiting(kind: Any, *, seconds: float = 0.0, waited: float = 0.0, **options: Any) -> Any:
    return kind(waited=waited, seconds=seconds, **options)


def offered(plan: Plan, share: int) -> peer.RowsOffered:
    batch = part(plan, 1, share, 2).select(["ids", "score"])
    kinds = {name: column_kind_of(column) for name, column in batch.columns.items()}
    header = Header(batch.index, {"ids": batch["ids"].lengths}, kinds)
    return peer.RowsOffered(EDGE, 1, share, header.to_bytes(), kinds)


# ---- workers


def test_a_worker_is_told_where_it_is_and_what_it_does(train: One, rollout: One):
    hello = train.ask(1, ask.WorkerHello())
    ((path, num_bytes),) = hello.places
    assert path.endswith("train-0-life") and num_bytes == 1 << 20 and hello.life == "train-0-life"
    assert hello.edges == {EDGE: say.EdgeOfWorker(columns=["ids", "score"], part=None, share=1)}
    assert hello.weights == {} and hello.deadline_seconds == TEST_TIMEOUT_SECONDS
    assert rollout.ask(1, ask.WorkerHello()).edges[EDGE] == say.EdgeOfWorker(
        columns=["ids", "score"], part=1, share=None
    )


def test_posts_are_shown_to_those_who_ask(train: One):
    assert train.ask(0, ask.SetStatus(status={"stage": "b"})) == say.Done()
    by_rank = train.ask(1, ask.AskStatus(group="train", host=0)).by_rank
    assert set(by_rank) == {0} and by_rank[0]["stage"] == "b"


def test_rows_are_put_and_offered_and_drained(rollout: One):
    rollout.put(0, 1, part(rollout.plan, 1, 0, 2))
    wait_for(lambda: rollout.kinds() == ["RowsOffered"])
    assert rollout.sent[0][0] == TRAIN and rollout.sent[0][1].share == 0
    assert rollout.ask(0, waiting(ask.Drain, seconds=9.0, waited=9.0 - 0.01)) == say.NotYet()
    with pytest.raises(DeadlineExceeded, match=r"rank 0 of group rollout waited 9\.0 s .*step 1, not yet read by host"):
        rollout.ask(0, waiting(ask.Drain, seconds=9.0, waited=9.0))
    assert rollout.ask(1, waiting(ask.Drain, seconds=1.0)) == say.Done()
    rollout.hear(TRAIN, peer.RowsTaken(EDGE, 1, (0,)))
    assert rollout.ask(0, waiting(ask.Drain, seconds=1.0)) == say.Done()
    assert rollout.buffer.segments.memory.used == 0


def test_drain_waits_for_messages_on_their_way(rollout: One):
    rollout.buffer.links.flush = lambda seconds: False  # type: ignore[method-assign]
    assert rollout.ask(0, waiting(ask.Drain, seconds=9.0, waited=8.99)) == say.NotYet()


def test_drain_waits_for_reports_and_names_who_is_late(rollout: One):
    rollout.buffer.lateness.of_gathering = lambda topic, step: ([f"{topic} {step}"], PeerLost)  # type: ignore
    rollout.ask(0, ask.SendReport(step=4, payload=report_to_bytes(StepReport(), 2)))
    with pytest.raises(PeerLost, match=r"rank 0 of group rollout waited 2\.0 s for the report of step 4: report 4$"):
        rollout.ask(0, waiting(ask.Drain, seconds=2.0, waited=2.0))
    rollout.ask(1, ask.SendReport(step=4, payload=report_to_bytes(StepReport(), 3)))
    wait_for(lambda: rollout.kinds() == ["Up"])
    assert rollout.ask(0, waiting(ask.Drain, seconds=1.0)) == say.Done()


def test_a_share_is_waited_for_and_read_and_given_back(train: One):
    batch = part(train.plan, 1, 0, 2).select(["ids", "score"])
    get = partial(waiting, ask.GetRows, edge=EDGE, step=1)
    assert train.ask(0, get(seconds=0.01)) == say.NotYet()
    rows = (segment.Views(batch.index, batch.columns), np.arange(len(batch)))
    (sent,) = stream([rows], lambda seconds: None).records
    train.buffer.links.stream = lambda host, ticket, seconds, take: take(*sent)  # type: ignore[method-assign]
    train.hear(ROLLOUT, offered(train.plan, 0))
    with ThreadPoolExecutor(1) as pool:
        rows = pool.submit(train.ask, 0, get(seconds=30.0)).result()
        for _ in range(30):
            rows = rows if isinstance(rows, say.ShareLocation) else train.ask(0, get(seconds=30.0))
    got = segment.views(train.memory, rows.offset, rows.contents).as_batch()
    assert got.row_ids.tolist() == batch.row_ids.tolist()
    assert rows.producer_seconds > 0 and rows.transfer_seconds > 0
    wait_for(lambda: train.kinds() == ["RowsTaken"])
    assert train.ask(0, ask.ReleaseRows(edge=EDGE, step=1)) == say.Done()
    assert train.buffer.segments.memory.used == 0
    with pytest.raises(OutOfOrder, match="again"):
        train.ask(0, get(seconds=1.0))


def test_late_rows_are_explained_by_those_who_have_not_offered(train: One):
    asked: list[Any] = []

    def of_hosts(edge: str, step: int, hosts: Sequence[Host]) -> Any:
        asked.append((edge, step, hosts))
        return ["rank 0: busy"], PeerLost

    train.buffer.lateness.of_hosts = of_hosts  # type: ignore[method-assign, assignment]
    with pytest.raises(PeerLost, match=r"stage b waited 3\.0 s for rows of edge a->b, step 1\. Missing: rank 0: busy"):
        train.ask(0, waiting(ask.GetRows, edge=EDGE, step=1, seconds=3.0, waited=3.0))
    assert asked == [(EDGE, 1, [ROLLOUT])]


def test_late_layouts_are_explained_by_the_tree(tmp_path: Path):
    for train in one(tmp_path, balance="Tokens"):
        train.buffer.lateness.of_gathering = lambda topic, step: ([f"{topic} {step}"], PeerLost)  # type: ignore
        with pytest.raises(PeerLost, match=r"Missing: layout/a->b 1$"):
            train.ask(0, waiting(ask.GetRows, edge=EDGE, step=1, seconds=3.0, waited=3.0))


def test_rows_of_a_data_buffer_that_has_left_are_not_waited_for(train: One):
    train.hear(ROLLOUT, peer.Departure())
    with pytest.raises(PeerLost, match="of host rollout-0 has ended, and its rows of edge a->b, step 1 have not come"):
        train.ask(0, waiting(ask.GetRows, edge=EDGE, step=1, seconds=3.0, waited=2.999))


def test_reports_are_collected_and_verdicts_announced(tmp_path: Path):
    for train in one(tmp_path, made=(1, 1)):
        late = partial(waiting, ask.Collect, step=1, seconds=2.0)
        train.buffer.lateness.of_gathering = lambda topic, step: (["rank 0"] * (step == 1), PeerLost)  # type: ignore
        assert train.ask(0, late(waited=1.999)) == say.NotYet()
        with pytest.raises(PeerLost, match=r"^waited 2\.0 s for the reports of step 1\. Missing: rank 0$"):
            train.ask(0, late(waited=2.0))
        nobody = {f"rank {rank} of group train": "it has not said anything yet" for rank in range(2)}
        missing = train.buffer.peer_side.answer(peer.WhatIsMissing(REPORT, 1))
        assert missing == {"said": nobody, "below": ["rollout-0"]}
        for rank in range(2):
            assert train.ask(rank, ask.SendReport(step=1, payload=report_to_bytes(StepReport(), rank))) == say.Done()
        train.hear(ROLLOUT, peer.Up(REPORT, 1, report_to_bytes(StepReport(samples=[{"row": 1}]), 2)))
        collected = wait_for(partial(train.buffer.tree.announced, REPORT, 1))
        assert train.ask(0, late(waited=0.0)) == say.Said(payload=collected)
        assert report_from_bytes(collected).samples == [{"row": 1}]

        wait = partial(waiting, ask.Await, topic=VERDICT, seconds=2.0)
        assert train.ask(1, wait(step=1, waited=1.999)) == say.NotYet()
        with pytest.raises(
            PeerLost, match=r"waited 2\.0 s for the verdict on step 1: waited 2.* step 1\. Missing: rank"
        ):
            train.ask(1, wait(step=1, waited=2.0))
        train.ask(0, ask.SetStatus(status={"stage": "judging"}))
        with pytest.raises(
            DeadlineExceeded, match=r"verdict on step 2 from the lead, rank 0 of group train \(host train-0\): last"
        ):
            train.ask(1, wait(step=2, waited=2.0))
        with pytest.raises(DeadlineExceeded, match=r"waited 2\.0 s for the opening on step 0 from the lead.*judging"):
            train.ask(1, waiting(ask.Await, topic=OPENING, step=0, seconds=2.0, waited=2.0))
        assert train.ask(0, ask.Announce(topic=VERDICT, step=1, payload=b"go")) == say.Done()
        assert train.ask(1, wait(step=1, waited=0.0)) == say.Said(payload=b"go")
        assert (ROLLOUT, peer.Down(VERDICT, 1, b"go")) in train.sent


def test_only_the_leads_host_announces(rollout: One):
    with pytest.raises(Bug, match="rank 1 of group rollout is not on the host of the lead"):
        rollout.ask(1, ask.Announce(topic=VERDICT, step=1, payload=b""))


def test_a_request_to_stop_climbs_at_once(train: One, rollout: One):
    assert train.ask(0, ask.IsStopRequested()) == say.Flag(value=False)
    assert rollout.ask(1, ask.RequestStop()) == say.Done()
    assert rollout.sent == [(TRAIN, peer.Up("stop", 0, b""))]
    train.hear(ROLLOUT, rollout.sent[0][1])
    assert train.ask(0, ask.IsStopRequested()) == say.Flag(value=True)


@pytest.mark.parametrize(
    "request_of, words",
    [
        (waiting(ask.GetRows, edge=EDGE, step=1), "GetRows of rank 1 of group rollout: AssertionError.*reads nothing"),
        (ask.ReleaseRows(edge=EDGE, step=1), "ReleaseRows of rank 1 of group rollout: AssertionError.*reads nothing"),
        (
            ask.SealRows(edge="x->y", step=1, offset=0, contents=segment.plan_contents(0, {})),
            "SealRows of rank 1 of group rollout: KeyError",
        ),
    ],
)
def test_a_bug_in_an_answer_ends_the_job_and_not_only_its_worker(rollout: One, request_of: Any, words: str):
    with pytest.raises(Bug, match=words):
        rollout.ask(1, request_of)
    with pytest.raises(Bug, match=words):
        rollout.ask(0, waiting(ask.Await, topic=VERDICT, step=1, seconds=30.0))
    assert [(host, type(message)) for host, message in rollout.sent] == [(TRAIN, peer.Broken)]


def test_a_broken_data_plane_answers_every_request_with_the_first_cause(rollout: One):
    rollout.put(0, 1, part(rollout.plan, 1, 0, 2))
    rollout.buffer.break_down(BadData("row 3"))
    rollout.buffer.break_down(PeerLost("which follows from it"))
    requests = [
        ask.WorkerHello(),
        ask.SetStatus(status={}),
        ask.AskStatus(group="rollout", host=0),
        waiting(ask.ReserveRows, edge=EDGE, step=1, num_bytes=1, seconds=30.0),
        ask.SealRows(edge=EDGE, step=1, offset=0, contents=segment.plan_contents(0, {})),
        waiting(ask.Drain, seconds=30.0),
        ask.OpenVersion(edge="w", version=1),
        ask.SendReport(step=1, payload=b""),
        waiting(ask.Await, topic=VERDICT, step=1, seconds=30.0),
        ask.RequestStop(),
    ]
    for request in requests:
        with pytest.raises(BadData, match="^row 3$"):
            rollout.ask(0, request)


def test_what_was_ready_before_the_data_plane_broke_is_given_and_taken_back(tmp_path: Path):
    for train in one(tmp_path, made=(1, 1)):
        train.ask(0, ask.Announce(topic=VERDICT, step=3, payload=b"go"))
        train.buffer.break_down(BadData("row 3"))
        assert train.ask(1, waiting(ask.Await, topic=VERDICT, step=3)) == say.Said(payload=b"go")
        assert train.ask(1, waiting(ask.Drain)) == say.Done()


def test_a_named_error_of_one_worker_is_its_own(rollout: One):
    with pytest.raises(PeerLost, match="there are no weights 'w'"):
        rollout.ask(0, ask.OpenVersion(edge="w", version=1))
    assert rollout.sent == []
    rollout.buffer.monitor.check()


@pytest.mark.parametrize("seconds, waited, held", [(9.0, 0.0, 1.0), (9.0, 8.75, 0.25), (9.0, 10.0, 0.0)])
def test_calls_are_held_a_second_at_most(rollout: One, seconds: float, waited: float, held: float):
    result: list[float] = []

    def wait(ready: Any, seconds: float) -> None:
        result.append(seconds)

    rollout.buffer.monitor.wait = wait  # type: ignore[method-assign, assignment]
    rollout.buffer.lateness.last_words = lambda host, rank: ""  # type: ignore[method-assign]
    try:
        rollout.ask(0, waiting(ask.Await, topic=OPENING, step=0, seconds=seconds, waited=waited))
    except DeadlineExceeded:
        assert waited > seconds
    assert result == [held]


# ---- peers


def test_a_broken_data_plane_is_broken_here_by_the_same_error(train: One):
    train.hear(ROLLOUT, peer.Broken("BadData", "row 3"))
    with pytest.raises(BadData, match="^row 3$"):
        train.ask(0, waiting(ask.GetRows, edge=EDGE, step=1, seconds=30.0))
    assert (ROLLOUT, peer.Broken("BadData", "row 3")) in train.sent


def test_peers_of_a_broken_data_plane_are_told_the_first_cause_whatever_they_ask(train: One):
    train.buffer.break_down(Away("rollout-1 does not answer"))
    peers = train.buffer.peer_side
    for call in (
        lambda: peers.take(ROLLOUT, "life", peer.Envelope(0, ())),
        lambda: peers.answer(peer.WhatDoTheyDo()),
        lambda: peers.stream(peer.RowsTicket(EDGE, 1, 0, 0, 1, 1)),
    ):
        with pytest.raises(PeerLost, match="^rollout-1 does not answer$") as caught:
            call()
        assert type(caught.value) is PeerLost, "nothing that would be waited for"


def test_a_data_buffer_that_ends_is_away(train: One):
    """Its workers are notified; peers that it could not say goodbye to go on as if it were silent."""
    train.buffer.close()
    with pytest.raises(Away, match="^this data buffer is shutting down$"):
        train.ask(0, waiting(ask.GetRows, edge=EDGE, step=1, seconds=30.0))
    with pytest.raises(Away, match="^this data buffer is shutting down$"):
        train.buffer.peer_side.take(ROLLOUT, "life", peer.Envelope(0, ()))


def test_what_comes_down_is_heard_of_the_parent_only(rollout: One):
    rollout.hear(TRAIN, peer.Down(VERDICT, 3, b"go"))
    assert rollout.ask(0, waiting(ask.Await, topic=VERDICT, step=3)) == say.Said(payload=b"go")
    with pytest.raises(Malformed, match="host rollout-1 is not above this one"):
        rollout.hear(Host("rollout", 1), peer.Down(VERDICT, 3, b"go"))


@pytest.mark.parametrize(
    "message",
    [peer.ChunkOffered("w", 1, 0, 0, 1, b"", 0), peer.ChunkTaken("w", 1, 0, 0), peer.SourceClosed("w", 1, 0, 1)],
)
def test_weights_that_are_none_are_refused(rollout: One, message: Any):
    with pytest.raises(PeerLost, match="there are no weights 'w' in this job"):
        rollout.hear(TRAIN, message)


def test_questions_about_workers(rollout: One):
    rollout.ask(1, ask.SetStatus(status={"stage": "a"}))
    answer = rollout.buffer.peer_side.answer
    assert answer(peer.WhatDoTheyDo()) == {"1": "last said 0 s ago: stage a"}
    assert answer(peer.WhatTheyPosted())["1"]["stage"] == "a"


def test_who_has_not_put_a_part(rollout: One):
    answer = rollout.buffer.peer_side.answer
    nothing = "it has not said anything yet"
    both = {"said": {f"rank {rank} of group rollout": nothing for rank in range(2)}, "below": []}
    assert answer(peer.WhatIsMissing(EDGE, 1)) == both
    rollout.put(0, 1, part(rollout.plan, 1, 0, 2))
    assert answer(peer.WhatIsMissing(EDGE, 1)) == {"said": {"rank 1 of group rollout": nothing}, "below": []}
    assert answer(peer.WhatIsMissing(EDGE, 2)) == both


def test_who_has_not_reported_and_whose_layout_is_missing(balanced: One, tmp_path: Path):
    answer = balanced.buffer.peer_side.answer
    nothing = "it has not said anything yet"
    balanced.ask(0, ask.SendReport(step=1, payload=b""))
    assert answer(peer.WhatIsMissing(REPORT, 1)) == {"said": {"rank 1 of group rollout": nothing}, "below": []}
    balanced.put(1, 1, part(balanced.plan, 1, 1, 2))
    assert answer(peer.WhatIsMissing(f"layout/{EDGE}", 1)) == {
        "said": {"rank 0 of group rollout": nothing},
        "below": [],
    }
    for above in one(tmp_path, balance="Tokens"):
        assert above.buffer.peer_side.answer(peer.WhatIsMissing(f"layout/{EDGE}", 1)) == {
            "said": {},
            "below": ["rollout-0"],
        }


def test_rows_are_streamed_as_they_were_offered(rollout: One):
    batch = part(rollout.plan, 1, 1, 2)
    rollout.put(1, 1, batch)
    wait_for(lambda: rollout.kinds() == ["RowsOffered"])
    offered, num_rows = batch.select(["ids", "score"]), len(batch)

    def streamed(first: int, stop: int, batch_bytes: int) -> list[Batch]:
        stream = rollout.buffer.peer_side.stream(peer.RowsTicket(EDGE, 1, 1, first, stop, batch_bytes))
        return [from_arrow(record) for record, _ in stream.records]

    (whole,) = streamed(0, num_rows, 1 << 20)
    assert same(whole, offered) and len(streamed(0, num_rows, 1)) == num_rows
    (middle,) = streamed(1, num_rows - 1, 1 << 20)
    assert same(middle, offered.take(np.arange(1, num_rows - 1))) and streamed(2, 2, 1) == []
    for first, stop in ((-1, 1), (2, 1), (0, num_rows + 1)):
        with pytest.raises(Malformed, match=f"^there are no rows {first} to {stop}$"):
            streamed(first, stop, 1)


@pytest.mark.parametrize(
    "ticket, words",
    [
        (peer.RowsTicket("x->y", 1, 0, 0, 1, 1), "this job has no edge 'x->y'"),
        (peer.RowsTicket(EDGE, 1, 0, 0, 1, 1), "share 0 of edge a->b, step 1, is not held here"),
        (peer.ChunkTicket("w", 1, 0, 0), "there are no weights 'w'"),
    ],
)
def test_tickets_for_what_is_not_here(rollout: One, ticket: Any, words: str):
    with pytest.raises(PeerLost, match=words):
        rollout.buffer.peer_side.stream(ticket)


def test_messages_go_to_the_links(train: One):
    taken: list[Any] = []
    train.buffer.links.take = lambda *call: taken.append(call) or "life"  # type: ignore
    assert train.buffer.peer_side.take(ROLLOUT, "theirs", peer.Envelope(0, ())) == "life"
    assert taken == [(ROLLOUT, "theirs", peer.Envelope(0, ()))]
    assert train.buffer.peer_side.here == TRAIN
