"""Rows from producers to consumers through real sockets: by ordinal, balanced, groups whole, tensor-parallel peers."""

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.batch import Batch
from rljob_worker.batch.minibatches import mini_batch_of
from rljob_worker.databuffer.protocol.errors import Away
from rljob_worker.databuffer.protocol.peer_side import Down, PeerMessage, RecordStream, RowsTicket, Up
from rljob_worker.databuffer.pull import producing
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.rows import stream as rows_stream
from rljob_worker.databuffer.rows.tests.batches import same
from rljob_worker.databuffer.server.peer_side import PeerSide
from rljob_worker.databuffer.tests.gang import (
    Gang,
    group,
    in_process,
    part,
    plan_of,
    stage,
    two_stages,
)
from rljob_worker.databuffer.tests.warm import warm_processes
from rljob_worker.process.lifeline import LIFELINE_FD

COLUMNS = ("ids", "score")


def exchange(gang, step: int, made: int, used: int) -> list[Batch]:
    """Every rank of `a` puts its rows, every rank of `b` gets."""
    for rank in range(made):
        gang.client("rollout", rank).put(step, "a->b", part(gang.plan, step, rank, made))
    with ThreadPoolExecutor(used) as pool:
        clients = [gang.client("train", rank) for rank in range(used)]
        return list(pool.map(lambda client: client.get(step, "a->b"), clients))


def test_rows_by_ordinal_reach_the_rank_that_owns_them(tmp_path: Path):
    plan = two_stages((1, 2), (1, 4))
    with in_process(plan, tmp_path) as gang:
        for step in (1, 2):
            got = exchange(gang, step, made=2, used=4)
            for rank, batch in enumerate(got):
                assert same(batch, part(plan, step, rank, 4).select(COLUMNS))


@pytest.mark.parametrize("made, used", [((2, 1), (3, 1)), ((3, 2), (1, 1)), ((1, 1), (2, 2))])
def test_several_hosts_by_ordinal(tmp_path: Path, made, used):
    plan = two_stages(made, used)
    with in_process(plan, tmp_path) as gang:
        got = exchange(gang, 1, made[0] * made[1], used[0] * used[1])
        for rank, batch in enumerate(got):
            assert same(batch, part(plan, 1, rank, len(got)).select(COLUMNS))


@pytest.mark.parametrize("breaks", [0, 1])
def test_many_rows_of_one_host_come_in_several_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: int):
    """One that breaks brings its own rows again, and no others."""
    monkeypatch.setattr(rows_stream, "STREAM_BYTES", 100)
    monkeypatch.setattr(producing, "few_bytes_for", lambda *sizes: -1)
    tickets: list[RowsTicket] = []
    stream, breaking = PeerSide.stream, threading.Semaphore(breaks)

    def noted_stream(side: PeerSide, ticket: RowsTicket) -> RecordStream:
        tickets.append(ticket)
        if ticket.first and breaking.acquire(blocking=False):
            raise Away("it breaks")
        return stream(side, ticket)

    monkeypatch.setattr(PeerSide, "stream", noted_stream)
    plan = two_stages((1, 1), (1, 1))
    with in_process(plan, tmp_path) as gang:
        (batch,) = exchange(gang, 1, made=1, used=1)
        assert same(batch, part(plan, 1, 0, 1).select(COLUMNS))
    asked = Counter((ticket.first, ticket.stop) for ticket in tickets)
    assert len(asked) == rows_stream.MAX_STREAMS and sorted(asked.values()) == [1] * 3 + [1 + breaks]
    assert {first for first, _ in asked} ^ {stop for _, stop in asked} == {0, len(batch)}


@pytest.mark.parametrize("needs_groups", [False, True])
def test_a_balanced_edge_gives_every_row_once(tmp_path: Path, needs_groups: bool):
    plan = two_stages((2, 1), (3, 1), balance="Tokens", needs_groups=needs_groups)
    with in_process(plan, tmp_path) as gang:
        for step in (1, 2, 3):
            got = exchange(gang, step, made=2, used=3)
            assert same(Batch.concat(got), part(plan, step, 0, 1).select(COLUMNS))
            if needs_groups:
                groups = [set(batch.group_ids.tolist()) for batch in got]
                assert not groups[0] & groups[1] and not groups[1] & groups[2]
            tokens = [int(batch.num_tokens.sum()) for batch in got]
            largest = 5 * (2 if needs_groups else 1)  # rows have at most 5 tokens, groups two rows
            assert max(tokens) <= np.mean(tokens) + largest


def test_an_ordinal_consumer_finds_rows_that_a_balanced_producer_holds_elsewhere(tmp_path: Path):
    plan = two_stages((2, 1), (2, 1), producer_balance="Tokens")
    with in_process(plan, tmp_path) as gang:
        whole = part(plan, 1, 0, 1)
        odd = np.arange(len(whole)) % 2  # nothing like by ordinal
        for rank in range(2):
            gang.client("rollout", rank).put(1, "a->b", whole.take(np.flatnonzero(odd == rank)))
        for rank in range(2):
            assert same(gang.client("train", rank).get(1, "a->b"), part(plan, 1, rank, 2).select(COLUMNS))


def test_producers_without_rows_and_shares_without_rows(tmp_path: Path):
    # one prompt of one row: three of four producers and two of three consumers have nothing
    plan = two_stages((2, 2), (3, 1), batch_size=1, group_size=1, producer_balance="Tokens", balance="Tokens")
    with in_process(plan, tmp_path) as gang:
        row = part(plan, 1, 0, 1)
        for rank in range(4):
            gang.client("rollout", rank).put(1, "a->b", row if rank == 2 else row.take([]))
        got = [gang.client("train", rank).get(1, "a->b") for rank in range(3)]
        assert sorted(len(batch) for batch in got) == [0, 0, 1]
        assert all(batch["ids"].dtype == "int64" and batch["score"].dtype == "float32" for batch in got)


def test_an_edge_without_columns_carries_the_rows_alone(tmp_path: Path):
    plan = two_stages((1, 2), (1, 1), columns=())
    with in_process(plan, tmp_path) as gang:
        got = exchange(gang, 1, made=2, used=1)[0]
        assert got.row_ids.tolist() == list(range(16)) and not got.columns


def test_mini_batches_are_balanced_one_by_one(tmp_path: Path):
    plan = two_stages((1, 1), (1, 2), batch_size=8, group_size=2, balance="Tokens", mini_batch_rows=4)
    with in_process(plan, tmp_path) as gang:
        got = exchange(gang, 1, made=1, used=2)
        for mini in range(4):
            tokens = []
            for batch in got:
                mine = mini_batch_of(batch.group_ids, step=1, batch_size=8, num_mini_batches=4, seed=plan.spec.seed)
                tokens.append(int(batch.num_tokens[mine == mini].sum()))
            assert abs(tokens[0] - tokens[1]) <= 5  # the longest row


def test_layouts_travel_up_and_down_the_tree_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Seven hosts, each with at most two below it, the lead's group first: train-0 has train-1 and rollout-0, train-1
    has rollout-1 and rollout-2, rollout-0 has rollout-3 and rollout-4; all of rollout have rows."""
    heard: list[tuple[str, str, str]] = []
    hears = PeerSide.hears

    def note_and_hear(side: PeerSide, sender: Host, message: PeerMessage) -> None:
        if isinstance(message, (Up, Down)) and message.topic.startswith("layout"):
            heard.append((type(message).__name__, str(sender), str(side.here)))
        hears(side, sender, message)

    monkeypatch.setattr(PeerSide, "hears", note_and_hear)
    plan = two_stages((5, 1), (2, 1), balance="Tokens", batch_size=10)
    with in_process(plan, tmp_path) as gang:
        got = exchange(gang, 1, made=5, used=2)
        assert same(Batch.concat(got), part(plan, 1, 0, 1).select(COLUMNS))
    below = {
        "train-0": ["train-1", "rollout-0"],
        "train-1": ["rollout-1", "rollout-2"],
        "rollout-0": ["rollout-3", "rollout-4"],
    }
    pairs = [(child, parent) for parent, children in below.items() for child in children]
    up = [("Up", child, parent) for child, parent in pairs]
    down = [("Down", parent, child) for child, parent in pairs]
    assert sorted(heard) == sorted(up + down)


def resident_bytes(gang: Gang, host: str, of: str = "rows") -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{gang.ready[host]['metrics_port']}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    name = f'rljob_buffer_resident_bytes{{of="{of}"}} '
    return float(next(line for line in lines if line.startswith(name)).removeprefix(name))


def test_two_producer_and_three_consumer_hosts_as_processes(tmp_path: Path):
    """Two edges into one balanced stage with tensor-parallel peers: both give every rank the same rows."""
    plan = plan_of(
        [group("rollout", 2, 2, ["a", "c"]), group("train", 3, 2, ["b"])],
        [
            stage("a", "rollout", Mesh(dp=4)),
            stage("c", "rollout", Mesh(dp=2, tp=2)),
            stage("b", "train", Mesh(dp=3, tp=2), "Attention", needs_groups=True),
        ],
        {"a->b": ["ids"], "c->b": ["score", "text"]},
        batch_size=12,
    )
    with warm_processes(plan, tmp_path) as gang:
        producers = [gang.client("rollout", rank) for rank in range(4)]
        consumers = [gang.client("train", rank) for rank in range(6)]
        for step in (1, 2):
            for rank, producer in enumerate(producers):
                producer.put(step, "a->b", part(plan, step, rank, 4))
                producer.put(step, "c->b", part(plan, step, rank // 2, 2))  # ranks 1 and 3 lead no rows
            got = [Batch.join([client.get(step, "a->b"), client.get(step, "c->b")]) for client in consumers]
            assert all(same(got[rank], got[rank + 1]) for rank in (0, 2, 4))
            assert same(Batch.concat(got[::2]), part(plan, step, 0, 1))
            assert not set(got[0].group_ids.tolist()) & set(got[2].group_ids.tolist())


def fresh(gang: Gang, name: str) -> subprocess.Popen[str]:
    """A data buffer as a supervisor starts it, with all that it imports."""
    group, _, host = name.rpartition("-")
    environment = {**os.environ, **gang.environment(group, int(host)), LIFELINE_FD: "0"}
    command = [sys.executable, "-m", "rljob_worker.databuffer"]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_data_buffer_is_slim(tmp_path: Path):
    gang = Gang(two_stages((1, 1), (1, 1), balance="Tokens"), tmp_path)
    gang.write_files()
    with fresh(gang, "rollout-0") as rollout, fresh(gang, "train-0") as train:
        for name, process in (("rollout-0", rollout), ("train-0", train)):
            assert process.stdout is not None
            gang.ready[name] = json.loads(process.stdout.readline())
        gang.write_book()
        exchange(gang, 1, made=1, used=1)
        for process in (rollout, train):
            mapped = Path(f"/proc/{process.pid}/maps").read_text()
            assert "pyarrow" in mapped
            assert not [name for name in ("torch", "pandas", "transformers") if f"/{name}/" in mapped]
        for client in gang.clients:
            client.close()
