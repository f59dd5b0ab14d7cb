"""Many hosts, many shares and little room, on real sockets: all that was put arrives, and nobody is asked twice."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.protocol.peer_side import Down, Envelope, PeerMessage, Question, RowsTicket, Up
from rljob_worker.databuffer.pull import producing
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.job_tree import JobTree
from rljob_worker.databuffer.rows.tests.batches import same
from rljob_worker.databuffer.server import buffer
from rljob_worker.databuffer.server.peer_side import PeerSide
from rljob_worker.databuffer.tests.gang import Gang, in_process, part, two_stages
from rljob_worker.errors import DeadlineExceeded
from rljob_worker.metrics.report import StepReport, report_from_bytes, report_to_bytes
from rljob_worker.metrics.scalars import total

ROW_VALUES = 4096
ROW_BYTES = 4 * ROW_VALUES


def big_part(rank: int, num_rows: int, num_values: int = ROW_VALUES) -> Batch:
    """Rows of one producer, `num_rows` to each, all of one length; the values tell the row."""
    ids = rank * num_rows + np.arange(num_rows)
    lengths = np.full(num_rows, num_values)
    columns = {"ids": Column.from_lengths(np.repeat(ids, lengths).astype(np.float32), lengths)}
    return Batch.build(ids, ids, columns, lengths)


def get_all(gang: Gang, num_ranks: int, step: int = 1) -> list[Batch]:
    """Every rank of the consumer at once."""
    clients = [gang.client("train", rank) for rank in range(num_ranks)]
    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(lambda c: c.get(step, "a->b", deadline_seconds=TEST_TIMEOUT_SECONDS), clients))


def put_all(gang: Gang, num_ranks: int, num_rows: int, num_values: int = ROW_VALUES) -> None:
    for rank in range(num_ranks):
        gang.client("rollout", rank).put(1, "a->b", big_part(rank, num_rows, num_values))


def check_arrived(batches: list[Batch], num_rows: int, num_values: int = ROW_VALUES) -> None:
    """Every row once, every value in its row."""
    ids = np.concatenate([batch.row_ids for batch in batches])
    assert np.sort(ids).tolist() == list(range(num_rows))
    for batch in batches:
        assert batch["ids"].values.tolist() == np.repeat(batch.row_ids, num_values).tolist()


@pytest.mark.parametrize("memory", [pytest.param("3Mi", marks=pytest.mark.slow), "2304Ki"])
def test_sixteen_hosts_fill_most_of_the_arena_of_eight_ranks(tmp_path: Path, memory: str):
    # 8 shares of 16 rows of 16 KiB with their index take 65 pages each: 2.13 MB, 68 and 90 % of the arena
    plan = two_stages((16, 1), (1, 8), balance="Tokens", columns=("ids",), batch_size=128, group_size=1, memory=memory)
    with in_process(plan, tmp_path) as gang, ThreadPoolExecutor(1) as pool:
        coming = pool.submit(get_all, gang, 8)
        put_all(gang, 16, num_rows=8)
        check_arrived(coming.result(), 128)


@pytest.mark.slow
@pytest.mark.parametrize("waits", [True, False])
def test_forty_hosts_to_one_rank(tmp_path: Path, waits: bool):
    # 80 rows of 16 KiB are 1.25 MiB of 2 MiB; by ordinal, so that early rows come while others are still computed
    plan = two_stages((40, 1), (1, 1), columns=("ids",), batch_size=80, group_size=1, memory="2Mi")
    with in_process(plan, tmp_path) as gang, ThreadPoolExecutor(1) as pool:
        coming = pool.submit(get_all, gang, 1) if waits else None
        put_all(gang, 40, num_rows=2)
        check_arrived(coming.result() if coming else get_all(gang, 1), 80)


@pytest.mark.parametrize("waits", [True, False])
def test_six_hosts_and_one_share_of_most_of_the_arena(tmp_path: Path, waits: bool):
    # 36 rows of 16 KiB are 576 KiB, 56 % of 1 MiB; what comes early may take half of it, and gives it back
    plan = two_stages((6, 1), (1, 1), columns=("ids",), batch_size=36, group_size=1, memory="1Mi")
    with in_process(plan, tmp_path) as gang, ThreadPoolExecutor(1) as pool:
        coming = pool.submit(get_all, gang, 1) if waits else None
        put_all(gang, 6, num_rows=6)
        check_arrived(coming.result() if coming else get_all(gang, 1), 36)


@pytest.mark.parametrize("num_hosts", [3, 4, 5])
def test_as_many_sources_and_shares_as_stream_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_hosts: int):
    """One source less than there are threads, as many, and one more; each to as many shares."""
    monkeypatch.setattr(buffer, "STREAM_THREADS", 4)
    num_rows = num_hosts * num_hosts
    plan = two_stages(
        (num_hosts, 1), (1, num_hosts), balance="Tokens", columns=("ids",), batch_size=num_rows, group_size=1
    )
    with in_process(plan, tmp_path) as gang, ThreadPoolExecutor(1) as pool:
        coming = pool.submit(get_all, gang, num_hosts)
        put_all(gang, num_hosts, num_rows=num_hosts)
        check_arrived(coming.result(), num_rows)


@pytest.mark.parametrize("fan_out", ["32", pytest.param("64", marks=pytest.mark.slow)])
def test_reports_of_thirty_three_hosts_reach_one_lead(tmp_path: Path, fan_out: str):
    plan = two_stages((33, 1), (1, 1))
    with in_process(plan, tmp_path, RLJOB_BUFFER_FAN_OUT=fan_out) as gang:
        everybody = [gang.client("rollout", rank) for rank in range(33)] + [gang.client("train", 0)]
        for step in (1, 2):
            for ordinal, client in enumerate(everybody):
                client.report(step, report_to_bytes(StepReport({"rows": total(1.0 + ordinal)}), ordinal))
            lead = everybody[-1]
            assert report_from_bytes(lead.collect(step)).metrics["rows"].sum == 595  # 1 + 2 + ... + 34
            lead.announce("verdict", step, b"go on")
            assert {client.await_announcement("verdict", step) for client in everybody} == {b"go on"}


class Heard:
    """What all data buffers of this process hear of others: calls with their messages, streams and questions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Host, Host, PeerMessage | None]] = []
        """(who calls, who is called, a message or None for a call without any)."""
        self.streams: list[RowsTicket] = []
        self.questions: list[tuple[Host, Question]] = []
        take, stream, answer = PeerSide.take, PeerSide.stream, PeerSide.answer

        def noted_take(side: PeerSide, sender: Host, life: str, envelope: Envelope) -> str:
            self.calls += [(sender, side.here, message) for message in envelope.messages or [None]]
            return take(side, sender, life, envelope)

        def noted_stream(side: PeerSide, ticket: RowsTicket) -> Any:
            self.streams.append(ticket)
            return stream(side, ticket)

        def noted_answer(side: PeerSide, question: Question) -> Any:
            self.questions.append((side.here, question))
            return answer(side, question)

        monkeypatch.setattr(PeerSide, "take", noted_take)
        monkeypatch.setattr(PeerSide, "stream", noted_stream)
        monkeypatch.setattr(PeerSide, "answer", noted_answer)

    @property
    def messages(self) -> list[tuple[Host, Host, PeerMessage]]:
        return [(sender, here, message) for sender, here, message in self.calls if message is not None]

    def connections(self, host: Host) -> int:
        """Those that a host has made, and those made to it."""
        pairs = {(sender, here) for sender, here, _ in self.calls}
        return sum(host in pair for pair in pairs)


@pytest.mark.parametrize("few_bytes, num_streams", [(-1, 12), (1 << 16, 0)])
def test_waiting_asks_nothing_of_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_bytes: int, num_streams: int
):
    """While a rank waits for 12 hosts, all that is heard are the pings of neighbours in the tree."""
    monkeypatch.setattr(producing, "few_bytes_for", lambda *sizes: few_bytes)
    heard = Heard(monkeypatch)
    plan = two_stages((12, 1), (1, 1), batch_size=12, group_size=1)
    shape = JobTree.of(plan, 2)
    with in_process(plan, tmp_path) as gang:
        consumer = gang.client("train", 0)
        with pytest.raises(DeadlineExceeded, match="and 4 more"):
            consumer.get(1, "a->b", deadline_seconds=1.5)  # the call is renewed once
        assert not heard.messages and not heard.streams
        assert all(here in shape.neighbours(sender) for sender, here, _ in heard.calls)
        # at the end, for its words, each host is asked once
        assert Counter(host for host, _ in heard.questions) == {Host("rollout", index): 1 for index in range(12)}
        for rank in range(12):
            gang.client("rollout", rank).put(1, "a->b", part(plan, 1, rank, 12))
        assert same(consumer.get(1, "a->b"), part(plan, 1, 0, 1).select(("ids", "score")))
        # each host offers its rows once, is asked for them at most once, and notified once that they have been taken
        assert len(heard.streams) == num_streams
        consumer.release(consumer.get(1, "a->b"))
        for rank in range(12):
            gang.client("rollout", rank).drain()
        assert len(heard.messages) == 24
        assert len(heard.questions) == 12


def test_the_lead_hears_each_thing_from_no_more_than_its_fan_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """22 hosts with a fan-out of 3, the lead at the top: reports, layouts and requests to stop climb, merged at every
    hop; openings, verdicts and layouts come down."""
    heard = Heard(monkeypatch)
    plan = two_stages((20, 1), (2, 1), balance="Tokens", batch_size=20, group_size=1)
    shape = JobTree.of(plan, 3)
    hosts = [shape.host(position) for position in range(shape.size)]
    with in_process(plan, tmp_path, RLJOB_BUFFER_FAN_OUT="3") as gang:
        producers = [gang.client("rollout", rank) for rank in range(20)]
        consumers = [gang.client("train", rank) for rank in range(2)]
        everybody = [*producers, *consumers]
        for step in (1, 2):
            consumers[0].announce("opening", step, b"begin")
            for ordinal, client in enumerate(everybody):
                assert client.await_announcement("opening", step) == b"begin"
                client.report(step, report_to_bytes(StepReport({"rows": total(1.0)}), ordinal))
            assert report_from_bytes(consumers[0].collect(step)).metrics["rows"].sum == 22
            consumers[0].announce("verdict", step, b"go on")
            assert {client.await_announcement("verdict", step) for client in everybody} == {b"go on"}
        for host in hosts:
            assert heard.connections(host) == 2 * len(shape.neighbours(host))
        for rank, client in enumerate(producers):
            client.request_stop()
            client.put(1, "a->b", part(plan, 1, rank, 20))
        for client in consumers:
            client.release(client.get(1, "a->b"))
        for client in everybody:
            client.drain()
    assert heard.connections(shape.root) <= 2 * 3 + 2 * 20  # the hosts that it gets rows from
    said = Counter((here, type(m), m.topic, m.step) for _, here, m in heard.messages if isinstance(m, (Up, Down)))
    for host in hosts:
        below, above = len(shape.children(host)), len(shape.neighbours(host)) - len(shape.children(host))
        for step in (1, 2):
            assert said[host, Up, "report", step] == below <= 3
            assert said[host, Down, "opening", step] == said[host, Down, "verdict", step] == above <= 1
        assert said[host, Up, "layout/a->b", 1] == below and said[host, Down, "layout/a->b", 1] == above
        assert said[host, Up, "stop", 0] == below
