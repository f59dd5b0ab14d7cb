"""Any failure on one host ends the waits of all, at once and by name; what peers say is bounded and checked."""

import contextlib
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import Plan
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.batch import Batch, Column
from rljob_worker.batch.column_kind import ColumnKind
from rljob_worker.databuffer.client import BufferClient
from rljob_worker.databuffer.protocol.errors import Bug, OutOfOrder
from rljob_worker.databuffer.protocol.peer_side import (
    ChunkOffered,
    Down,
    PeerMessage,
    RowsOffered,
    RowsTaken,
    SourceClosed,
    Up,
    WhatIsMissing,
)
from rljob_worker.databuffer.pull import consuming, producing
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.stage_route import StageRoute
from rljob_worker.databuffer.rows import landing as rows_landing
from rljob_worker.databuffer.rows.arrangement import Header
from rljob_worker.databuffer.rows.segment import Views
from rljob_worker.databuffer.rows.stream import stream
from rljob_worker.databuffer.server import buffer as server
from rljob_worker.databuffer.tests.failing_peers import Liar, lying, separately
from rljob_worker.databuffer.tests.gang import (
    Gang,
    group,
    in_process,
    part,
    plan_of,
    rows,
    serving_some,
    stage,
    two_stages,
)
from rljob_worker.databuffer.tests.test_rows import resident_bytes
from rljob_worker.errors import BadData, DeadlineExceeded, InvalidJob, PeerLost, RLJobError
from rljob_worker.metrics.report import StepReport, report_to_bytes
from rljob_worker.metrics.scalars import mean, total
from rljob_worker.tests.waiting import wait_for

EDGE = "a->b"


def causes(calls: Sequence[Callable[[], Any]]) -> list[RLJobError]:
    """What all calls raise, made at once."""

    def cause(call: Callable[[], Any]) -> RLJobError:
        with pytest.raises(RLJobError) as caught:
            call()
        return caught.value

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(cause, calls))


def once(error: Exception, original: Callable[..., Any]) -> Callable[..., Any]:
    """Raises for the first caller."""
    first = threading.Semaphore(1)

    def call(*args: Any, **options: Any) -> Any:
        if first.acquire(blocking=False):
            raise error
        return original(*args, **options)

    return call


# ---- background work that fails


@pytest.mark.parametrize(
    "place, name, error, words",
    [
        (StageRoute, "assign", AssertionError("no rank"), r"layout/a->b of step 1: AssertionError\('no rank'\)"),
        (StageRoute, "assign", MemoryError(), r"layout/a->b of step 1: MemoryError\(\)"),
        (server, "merge_layouts", ValueError("empty"), r"merging layout/a->b of step 1: ValueError"),
        (producing, "header_of", IndexError("index 7"), r"a->b.* step 1: IndexError\('index 7'\)"),
        (consuming, "arrange", AssertionError("order"), r"edge a->b, step 1: AssertionError\('order'\)"),
        (consuming, "_check_offer", KeyError("score"), r"RowsOffered from host rollout-., edge a->b, step 1: KeyError"),
        (
            rows_landing,
            "rows_checksum",
            FloatingPointError("odd"),
            r"rows of edge a->b, step 1 from host .*FloatingPointError",
        ),
    ],
)
def test_a_bug_in_background_work_ends_all_waits_of_all_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, error: Exception, words: str
):
    monkeypatch.setattr(place, name, once(error, getattr(place, name)))
    monkeypatch.setattr(producing, "few_bytes_for", lambda *sizes: -1)  # rows are streamed
    plan = two_stages((3, 1), (2, 1), balance="Tokens", deadline_seconds=TEST_TIMEOUT_SECONDS)
    with in_process(plan, tmp_path) as gang:
        train, rollout = ([gang.client(g, r) for r in range(n)] for g, n in (("train", 2), ("rollout", 3)))
        for rank, client in enumerate(rollout):
            client.put(1, EDGE, part(plan, 1, rank, 3))
        waits: list[Callable[[], Any]] = [partial(get_two_steps, client) for client in train]
        waits += [partial(client.await_announcement, "verdict", 1) for client in (*train, *rollout)]
        result = causes([*waits, partial(train[0].collect, 1)])
    assert len({str(item) for item in result}) == 1, "one cause, the first"
    assert {(type(item), item.exit_code) for item in result} == {(Bug, ExitCode.BUG)}
    assert re.search(words, str(result[0])), str(result[0])


def get_two_steps(client: BufferClient) -> None:
    """The first may come before it is known that the other never will."""
    client.get(1, EDGE)
    client.get(2, EDGE)


def test_bad_data_on_one_host_is_bad_data_everywhere(tmp_path: Path):
    plan = two_stages((2, 1), (2, 1), balance="Tokens", deadline_seconds=TEST_TIMEOUT_SECONDS)
    with in_process(plan, tmp_path) as gang:
        mine = part(plan, 1, 0, 1)
        producers = [gang.client("rollout", rank) for rank in range(2)]
        for producer in producers:
            producer.put(1, EDGE, mine)  # every row twice
        waits = [partial(client.await_announcement, "verdict", 1) for client in producers]
        result = causes([*waits, *(partial(gang.client("train", rank).get, 1, EDGE) for rank in range(2))])
    assert [type(item) for item in result] == [BadData] * 4
    assert all("row" in str(item) and item.exit_code == ExitCode.BAD_DATA for item in result)


def test_reports_that_do_not_merge_end_the_wait_for_the_verdict(tmp_path: Path):
    plan = two_stages((2, 1), (1, 1), deadline_seconds=TEST_TIMEOUT_SECONDS)
    with in_process(plan, tmp_path) as gang:
        clients = [gang.client("train", 0), *(gang.client("rollout", rank) for rank in range(2))]
        for ordinal, client in enumerate(clients):
            scalar = mean(1.0) if ordinal else total(1.0)
            client.report(1, report_to_bytes(StepReport({"loss": scalar}), ordinal))
        result = causes([partial(client.await_announcement, "verdict", 1) for client in clients])
    assert len({str(item) for item in result}) == 1 and type(result[0]) is BadData and "loss" in str(result[0])


# ---- the end of a job


def test_hosts_leave_in_any_order_and_those_who_stay_hear_of_no_loss(tmp_path: Path):
    plan = two_stages((4, 1), (3, 1), deadline_seconds=TEST_TIMEOUT_SECONDS)
    with separately(plan, tmp_path) as (gang, stacks):
        clients = {f"{g}-{r}": gang.client(g, r) for g, n in (("train", 3), ("rollout", 4)) for r in range(n)}
        for rank in range(4):
            clients[f"rollout-{rank}"].put(1, EDGE, part(plan, 1, rank, 4))
        for rank in range(3):
            clients[f"train-{rank}"].release(clients[f"train-{rank}"].get(1, EDGE))
        for ordinal, client in enumerate(clients.values()):
            client.report(1, report_to_bytes(StepReport(), ordinal))
        clients["train-0"].collect(1)
        clients["train-0"].announce("verdict", 1, b"last")
        for client in clients.values():
            assert client.await_announcement("verdict", 1) == b"last"
            client.drain()
        # the root, an inner host, leaves: those that stay are asked after every departure
        for leaving in (["train-0", "rollout-3"], ["train-1", "rollout-0"], ["train-2"]):
            for name in leaving:
                clients.pop(name)
                stacks[name].close()
            done = threading.Event()
            threading.Timer(0.7, done.set).start()  # longer than the retry window
            wait_for(done.is_set)
            for name, client in clients.items():
                group, _, index = name.rpartition("-")
                client.peer_status("train" if group == "rollout" else "rollout", int(index) % 3)  # raises a cause


def test_drain_waits_until_a_report_has_gone_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    go = threading.Event()
    merge = server.merge_reports
    monkeypatch.setattr(server, "merge_reports", lambda parts: (go.wait(TEST_TIMEOUT_SECONDS), merge(parts))[1])
    with in_process(two_stages((1, 2), (1, 1)), tmp_path) as gang:
        clients = [gang.client("rollout", rank) for rank in range(2)]
        gang.client("train", 0).report(1, report_to_bytes(StepReport(), 0))
        clients[0].report(1, report_to_bytes(StepReport(), 1))
        with pytest.raises(
            DeadlineExceeded, match=r"for the report of step 1: rank 1 of group rollout \(host rollout-0"
        ):
            clients[0].drain(0.2)
        clients[1].report(1, report_to_bytes(StepReport(), 2))
        with pytest.raises(DeadlineExceeded, match=r"for the report of step 1"):
            clients[0].drain(0.2)
        go.set()
        clients[0].drain(10.0)


def test_rows_of_a_data_buffer_that_has_ended_are_not_waited_for(tmp_path: Path):
    """rollout-2 is not a neighbour of train-0 in the tree: 0 has 1 and 2, which has no child, 1 has 3 and 4."""
    plan = two_stages((4, 1), (1, 1), deadline_seconds=TEST_TIMEOUT_SECONDS)
    with separately(plan, tmp_path) as (gang, stacks):
        consumer, producers = gang.client("train", 0), [gang.client("rollout", rank) for rank in range(4)]
        for rank, producer in enumerate(producers):
            producer.put(1, EDGE, part(plan, 1, rank, 4))
        consumer.release(consumer.get(1, EDGE))
        stacks["rollout-2"].close()
        with pytest.raises(PeerLost, match="of host rollout-2 has ended, and its rows of edge a->b, step 2 have not"):
            consumer.get(2, EDGE)


def test_a_data_buffer_that_never_starts_is_named_after_the_start_window(tmp_path: Path):
    plan = two_stages((1, 1), (1, 1), deadline_seconds=TEST_TIMEOUT_SECONDS)
    lost = pytest.raises(
        PeerLost,
        match="rollout-0 is not in the address book yet; away for .* never been heard by host train-0",
    )
    with separately(plan, tmp_path, without="rollout-0", RLJOB_BUFFER_START_SECONDS="1") as (gang, _), lost:
        gang.client("train", 0).get(1, EDGE)


@pytest.mark.parametrize("balance", ["None", "Tokens"])
def test_a_data_buffer_that_gave_up_the_others_says_so_to_them_and_takes_nothing(tmp_path: Path, balance: str):
    """rollout-1 has an address book of its own, late and without any host; the others find it, and it answers them."""
    plan = two_stages((3, 1), (1, 1), balance=balance, deadline_seconds=TEST_TIMEOUT_SECONDS)
    gang, late = Gang(plan, tmp_path), [("rollout", 1)]
    gang.write_files()
    windows = {"RLJOB_PEERS": str(tmp_path / "late.json"), "RLJOB_BUFFER_START_SECONDS": str(TEST_TIMEOUT_SECONDS)}
    with (
        serving_some(gang, late, **windows),
        serving_some(gang, [host for host in gang.hosts() if host not in late]),
        contextlib.closing(gang),
    ):
        producers, consumer = [gang.client("rollout", rank) for rank in range(3)], gang.client("train", 0)
        gang.write_book()
        (tmp_path / "aside.json").write_text("{}")
        (tmp_path / "aside.json").rename(tmp_path / "late.json")  # whoever looks for it reads all of it
        result = causes([partial(consumer.get, 1, EDGE), partial(producers[2].await_announcement, "verdict", 1)])
        puts = [partial(producer.put, 1, EDGE, part(plan, 1, rank, 3)) for rank, producer in enumerate(producers)]
        result += causes([*puts, partial(consumer.set_status, {"stage": "b"})])
    assert {type(item) for item in result} == {InvalidJob} and len({str(item) for item in result}) == 1
    assert "late.json has no address of host" in str(result[0])


# ---- room, order


def test_a_put_says_how_long_it_really_waited(tmp_path: Path):
    plan = two_stages((1, 1), (1, 1), batch_size=1, group_size=1, memory="1Mi")
    with in_process(plan, tmp_path) as gang:
        producer = gang.client("rollout", 0)
        producer.put(1, EDGE, rows([0], 1, [50_000] * 3))
        with pytest.raises(DeadlineExceeded, match=r"largest free range .* after 1\.[2-9] s\. Oldest of 1 segments"):
            producer.put(2, EDGE, rows([1], 1, [90_000] * 3), deadline_seconds=1.2)
        producer.put(2, EDGE, rows([1], 1, [50_000] * 3))
        with pytest.raises(DeadlineExceeded, match=r"waited 1\.[2-9] s for readers 2 steps behind"):
            producer.put(3, EDGE, rows([2], 1, [50_000] * 3), deadline_seconds=1.2)


def test_a_worker_asks_for_what_it_gave_back_and_for_what_is_over(tmp_path: Path):
    plan = two_stages((1, 1), (1, 1))
    with in_process(plan, tmp_path) as gang:
        producer, consumer = gang.client("rollout", 0), gang.client("train", 0)
        for step in range(1, 5):
            producer.put(step, EDGE, part(plan, step, 0, 1))
            consumer.release(consumer.get(step, EDGE))
            with pytest.raises(OutOfOrder, match=f"step {step} again, which it has released"):
                consumer.get(step, EDGE)
        with pytest.raises(OutOfOrder, match="step 1 of edge a->b is over: step 4 is here"):
            consumer.get(1, EDGE)


# ---- lies


def offer(
    share: int,
    *,
    edge: str = EDGE,
    step: int = 1,
    data: bytes | None = None,
    length: int = 1,
    group: int = 6,
    **kind: Any,
) -> RowsOffered:
    """An offer of the first row of one of the step's eight groups, with one column."""
    group += 8 * (step - 1)
    header = Header(rows([2 * group], 2, {2 * group: 1}).index, {"ids": np.array([length])}, {"ids": IDS})
    kinds = {"ids": replace(IDS, **kind)}
    return RowsOffered(edge, step, share, header.to_bytes() if data is None else data, kinds)


IDS = ColumnKind("int64", "int64", (), True)
CHUNK = ChunkOffered("weights", 1, 0, 0, 10, b"", 0)


@pytest.mark.parametrize(
    "lies, words",
    [
        ([offer(7)], "nobody of host train-0 reads share 7"),
        ([offer(-1)], "nobody of host train-0 reads share -1"),
        ([offer(0, edge="x->y")], "RowsOffered from host rollout-2, edge x->y, step 1: this job has no edge 'x->y'"),
        ([offer(0), offer(0)], "rollout-2 offered share 0 of edge a->b, step 1 twice"),
        ([offer(0, data=b"no table")], "rollout-2, edge a->b, step 1: a header of 8 bytes, where a row has 32"),
        ([offer(0, length=-1)], "RowsOffered from host rollout-2, edge a->b, step 1: ids of -1"),
        ([offer(0, length=1 << 62)], "RowsOffered from host rollout-2, edge a->b, step 1: ids has more bytes than any"),
        ([offer(0, storage="object")], "RowsOffered from host rollout-2, edge a->b, step 1: no column is like ids"),
        (
            [offer(0, group=0)],
            "edge a->b, step 1: rollout-2 offered rows that are not of step 1, share 0 and this host",
        ),
        ([offer(0, group=14)], "edge a->b, step 1: rollout-2 offered rows that are not of step 1, share 0 and this"),
        ([offer(0, step=step) for step in range(1000, 1066)], "of edge a->b, while 64 others from"),
        ([RowsTaken(EDGE, 1, (0,))], "share 0 was not offered to host rollout-2"),
        ([RowsTaken("x->y", 1, (0,))], "RowsTaken from host rollout-2, edge x->y, step 1: this job has no edge 'x->y'"),
        ([Up("report", 1, b"")], "host rollout-2 is not below this one"),
        ([Up("stop", 0, b"")], "host rollout-2 is not below this one"),
        ([Down("verdict", 1, b"")], "host rollout-2 is not above this one"),
        ([CHUNK], "there are no weights 'weights' in this job"),
        ([SourceClosed("weights", 1, 0, 1)], "there are no weights 'weights' in this job"),
    ],
)
def test_what_a_peer_cannot_say_ends_the_wait_by_name(tmp_path: Path, lies: list[PeerMessage], words: str):
    """rollout-2 is below rollout-0, which is below train-0."""
    plan = two_stages((3, 1), (1, 1), columns=("ids",), deadline_seconds=TEST_TIMEOUT_SECONDS)
    with lying(plan, tmp_path, "rollout", 2) as (gang, liar), ThreadPoolExecutor(1) as pool:
        client = gang.client("train", 0)
        waiting = pool.submit(client.get, 1, EDGE)
        tell(liar, Host("train", 0), lies)
        with pytest.raises(RLJobError, match=re.escape(words)) as caught:
            waiting.result()
        assert not isinstance(caught.value, Bug)
        with pytest.raises(RLJobError, match=re.escape(words)):
            gang.client("train", 0)  # it lives, and says why


def test_gatherings_of_the_far_future_neither_pile_up_nor_drop_those_of_today(tmp_path: Path):
    plan = two_stages((3, 1), (1, 1), deadline_seconds=TEST_TIMEOUT_SECONDS)
    with lying(plan, tmp_path, "rollout", 2) as (gang, liar):
        above = Host("rollout", 0)
        liar.links.ask([above], WhatIsMissing("report", 10**9), 5.0)
        gang.client("rollout", 0).report(1, report_to_bytes(StepReport(), 1))
        tell(liar, above, [Up("report", 10**9, report_to_bytes(StepReport(), 3))])
        answer = liar.links.ask([above], WhatIsMissing("report", 1), 5.0)[above]
        assert answer == {"said": {}, "below": ["rollout-2"]}
        tell(liar, above, [Up("report", step, report_to_bytes(StepReport(), 3)) for step in range(10**6, 10**6 + 70)])
        with pytest.raises(OutOfOrder, match="step 1000062 of report, while 64 others are being gathered"):
            gang.client("train", 0).get(1, EDGE)


@pytest.mark.parametrize("edge, step", [(EDGE, 10**9), (EDGE, -5), ("x->y", 1), ("report", -1)])
def test_questions_leave_nothing_behind(tmp_path: Path, edge: str, step: int):
    plan = two_stages((2, 1), (1, 1))
    with lying(plan, tmp_path, "rollout", 1) as (gang, liar):
        for host in (Host("train", 0), Host("rollout", 0)):
            for number in range(80):
                liar.links.ask([host], WhatIsMissing(edge, step + number), 5.0)
        gang.client("rollout", 0).put(1, EDGE, part(plan, 1, 0, 2))
        with pytest.raises(DeadlineExceeded, match="rollout-1: its workers have put everything"):
            gang.client("train", 0).get(1, EDGE, deadline_seconds=0.1)


def test_rows_said_to_be_longer_than_any_memory_are_refused_at_once(tmp_path: Path):
    plan = two_stages((1, 1), (1, 1), columns=("ids",), deadline_seconds=60 * TEST_TIMEOUT_SECONDS)
    with lying(plan, tmp_path, "rollout", 0) as (gang, liar):
        tell(liar, Host("train", 0), [offer(0, length=1 << 40)])
        with pytest.raises(
            DeadlineExceeded, match="no room for share 0 of edge a->b, step 1: 8,796,093,0.* cannot help"
        ):
            gang.client("train", 0).get(1, EDGE)


def test_rows_that_were_offered_and_do_not_come_are_a_lost_peer(tmp_path: Path):
    plan = two_stages((1, 1), (1, 1), columns=("ids",), deadline_seconds=TEST_TIMEOUT_SECONDS)
    with lying(plan, tmp_path, "rollout", 0) as (gang, liar):
        tell(liar, Host("train", 0), [offer(0)])
        with pytest.raises(PeerLost, match="there is nothing"):
            gang.client("train", 0).get(1, EDGE)


@pytest.mark.parametrize(
    "row, length, words",
    [
        (0, 2, "length of ids 2 came in the place of length of ids 1"),
        (0, 0, "length of ids 0 came in the place of length of ids 1"),
        (3, 1, "row 3 came in the place of row 0"),
    ],
)
def test_rows_that_are_not_as_they_were_offered_are_a_bug_and_not_read(
    tmp_path: Path, row: int, length: int, words: str
):
    plan = two_stages((1, 1), (1, 1), columns=("ids",), deadline_seconds=TEST_TIMEOUT_SECONDS)
    with lying(plan, tmp_path, "rollout", 0) as (gang, liar):
        rows = Batch.build([row], [0], {"ids": Column.ragged([np.zeros(length, np.int64)], "int64")}, [1])
        liar.rows = stream([(Views(rows.index, rows.columns), np.arange(1))], lambda seconds: None)
        tell(liar, Host("train", 0), [offer(0, group=0)])
        with pytest.raises(Bug, match=f"edge a->b, step 1 from host rollout-0: {words}"):
            gang.client("train", 0).get(1, EDGE)


def tell(liar: Liar, host: Host, lies: Sequence[PeerMessage]) -> None:
    for lie in lies:
        liar.links.send(host, lie)
    liar.links.flush(10.0)


# ---- many at once


def test_sixteen_threads_put_and_get_through_a_small_arena_and_lose_nothing(tmp_path: Path):
    """Four producers and four consumers of one host each, of three edges; two steps of one edge fill a tenth."""
    names = ("a->b", "c->b", "d->b")
    for staleness in (0, 2):
        place = tmp_path / str(staleness)
        place.mkdir()
        hammer(place, names, staleness)


def hammer(place: Path, names: Sequence[str], staleness: int) -> None:
    plan = three_edges(names, staleness)
    num_steps, size = 6, 8
    with in_process(plan, place) as gang:

        def produce(rank: int) -> list[Any]:
            client = gang.client("rollout", rank)
            for step in range(1, num_steps + 1):
                for name in names:
                    client.put(step, name, part(plan, step, rank, size, [3_000] * 16 * num_steps))
            client.drain()
            return []

        def consume(rank: int) -> list[Any]:
            client, result = gang.client("train", rank), []
            for step in range(1, num_steps + 1):
                for name in names[rank % 3 :] + names[: rank % 3]:
                    batch = client.get(step, name)
                    assert (batch["ids"].values.reshape(-1, 3_000)[:, 0] == batch.row_ids * 10).all()
                    result += [(name, row) for row in batch.row_ids.tolist()]
                    client.release(batch)
            return result

        with ThreadPoolExecutor(2 * size) as pool:
            producing = [pool.submit(produce, rank) for rank in range(size)]
            consuming = [pool.submit(consume, rank) for rank in range(size)]
            # the first that fails is the cause, the others wait for it
            result = [row for ended in as_completed([*producing, *consuming]) for row in ended.result()]
        every = [(name, row) for name in names for row in range(16 * num_steps)]
        assert sorted(result) == sorted(every)
        assert wait_for(lambda: resident_bytes(gang, "train-0") == 0 and resident_bytes(gang, "rollout-0") == 0)


def three_edges(names: Sequence[str], staleness: int) -> Plan:
    made = [name.split("->")[0] for name in names]
    plan = plan_of(
        [group("rollout", 1, 8, made), group("train", 1, 8, ["b"])],
        [*(stage(name, "rollout", Mesh(dp=8)) for name in made), stage("b", "train", Mesh(dp=8), "Tokens")],
        {name: ["ids"] for name in names},
        memory="4Mi",
        deadline_seconds=TEST_TIMEOUT_SECONDS,
    )
    rollout = plan.spec.rollout.model_copy(update={"max_staleness": staleness})
    return plan.model_copy(update={"spec": plan.spec.model_copy(update={"rollout": rollout})})
