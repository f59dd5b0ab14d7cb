"""What goes wrong, with data buffers as real processes: the error has a class, and names who and what."""

import os
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rljob_api.pipeline.meshes import Mesh
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.databuffer import client
from rljob_worker.databuffer.client import BufferClient
from rljob_worker.databuffer.protocol.errors import Refused
from rljob_worker.databuffer.rows.stream import ROW_BYTES
from rljob_worker.databuffer.rows.tests.batches import same
from rljob_worker.databuffer.store.segment_files import ARENA
from rljob_worker.databuffer.tests.gang import (
    Gang,
    group,
    in_process,
    part,
    plan_of,
    rows,
    stage,
    two_stages,
)
from rljob_worker.databuffer.tests.warm import BufferProcess, warm_processes
from rljob_worker.errors import BadData, DeadlineExceeded, PeerLost
from rljob_worker.process.lifeline import LIFELINE_FD
from rljob_worker.tests.warm import run_warm


@pytest.mark.parametrize("balance", ["None", "Tokens"])
def test_a_killed_peer_is_a_named_error_and_not_a_hang(tmp_path: Path, balance: str):
    plan = two_stages((2, 1), (1, 1), balance=balance)
    with warm_processes(plan, tmp_path, RLJOB_BUFFER_RETRY_SECONDS="1") as gang:
        consumer, producers = gang.client("train", 0), [gang.client("rollout", rank) for rank in range(2)]
        for rank, producer in enumerate(producers):
            producer.put(1, "a->b", part(plan, 1, rank, 2))
        assert len(consumer.get(1, "a->b")) == 16
        gang.processes["rollout-1"].kill()
        gang.processes["rollout-1"].wait()
        with pytest.raises(PeerLost, match="the data buffer of host rollout-1 does not answer"):
            producers[0].put(2, "a->b", part(plan, 2, 0, 2))  # raises, too, once it is known
            consumer.get(2, "a->b", deadline_seconds=TEST_TIMEOUT_SECONDS)


def test_draining_after_a_peer_was_lost_does_not_say_that_it_heard_all(tmp_path: Path):
    with warm_processes(two_stages((2, 1), (1, 1)), tmp_path, RLJOB_BUFFER_RETRY_SECONDS="1") as gang:
        lead = gang.client("train", 0)
        lead.announce("opening", 0, b"go")
        assert gang.client("rollout", 1).await_announcement("opening", 0) == b"go"
        lead.drain(TEST_TIMEOUT_SECONDS)
        gang.processes["rollout-1"].kill()
        gang.processes["rollout-1"].wait()
        lead.announce("verdict", 1, b"go on")
        with pytest.raises(PeerLost, match="the data buffer of host rollout-1 does not answer"):
            lead.drain(TEST_TIMEOUT_SECONDS)


def test_a_client_hears_at_once_that_its_own_data_buffer_is_gone(tmp_path: Path):
    with warm_processes(two_stages(), tmp_path) as gang, ThreadPoolExecutor(1) as pool:
        client = gang.client("train", 0)
        waiting = pool.submit(client.get, 1, "a->b")
        gang.processes["train-0"].kill()
        with pytest.raises(PeerLost, match="own sidecar"):
            waiting.result()
        with pytest.raises(PeerLost, match="own sidecar"):
            client.set_status({"stage": "b"})


def test_a_restarted_data_buffer_does_not_pass_for_the_one_before(tmp_path: Path):
    with warm_processes(two_stages(), tmp_path) as gang:
        client = gang.client("train", 0)
        gang.processes["train-0"].send_signal(signal.SIGHUP)
        gang.processes["train-0"].wait()
        again = gang.processes["again"] = BufferProcess(gang, "train", 0)
        assert again.stdout.readline()
        with pytest.raises(PeerLost, match="has restarted, and the rows it held are lost|does not answer"):
            client.get(1, "a->b")


def test_a_peer_that_has_not_started_says_nothing_yet(tmp_path: Path):
    plan = two_stages()
    with warm_processes(plan, tmp_path) as gang:
        (tmp_path / "peers.json").unlink()
        assert gang.client("train", 0).peer_status("rollout", 0, rank=0) == {}
        gang.write_book()
        gang.client("rollout", 0).set_status({"store_port": 7})
        assert gang.client("train", 0).peer_status("rollout", 0, rank=0)["store_port"] == 7


@pytest.mark.parametrize(
    "lie, reason",
    [
        ({"token": "guessed"}, "train-0 does not have the token of this job"),
        ({"attempt": 0}, "train-0 is of attempt 0, this data buffer serves attempt 1"),
        ({"plan_hash": "f" * 64}, "train-0 runs plan ffffffffffff, this data buffer serves plan"),
    ],
)
def test_strangers_old_attempts_and_other_plans_are_refused_by_name(tmp_path: Path, lie, reason):
    with in_process(two_stages(), tmp_path) as gang, pytest.raises(Refused, match=reason):
        gang.client("train", 0, **lie)


@pytest.mark.parametrize("balance", ["None", "Tokens"])
def test_a_time_out_names_the_late_rank_and_what_it_does(tmp_path: Path, balance: str):
    plan = two_stages((2, 1), (1, 1), balance=balance)
    with in_process(plan, tmp_path) as gang:
        gang.client("rollout", 0).put(3, "a->b", part(plan, 3, 0, 2))
        gang.client("rollout", 1).set_status({"stage": "a", "step": 3, "rows": "5 of 8"})
        with pytest.raises(DeadlineExceeded) as caught:
            gang.client("train", 0).get(3, "a->b", deadline_seconds=0.3)
    message = str(caught.value)
    assert "stage b waited 0.3 s for rows of edge a->b, step 3" in message
    assert "rank 1 of group rollout (host rollout-1): last said 0 s ago: stage a, step 3, rows 5 of 8" in message
    assert "rank 0 of group" not in message


def test_a_full_arena_blocks_put_until_the_consumer_is_done(tmp_path: Path):
    # 1 Mi holds two parts of 400,000 bytes and not three
    plan = two_stages((1, 1), (1, 1), batch_size=1, group_size=1, memory="1Mi")
    with in_process(plan, tmp_path) as gang, ThreadPoolExecutor(1) as pool:
        producer, consumer = gang.client("rollout", 0), gang.client("train", 0)
        for step in (1, 2):
            producer.put(step, "a->b", rows([step - 1], 1, [50_000] * 3))
        with pytest.raises(DeadlineExceeded, match="part 0 of edge a->b, step 1, not yet read by host train-0"):
            producer.put(3, "a->b", rows([2], 1, [50_000] * 3), deadline_seconds=0.2)
        third = pool.submit(producer.put, 3, "a->b", rows([2], 1, [50_000] * 3))
        consumer.release(consumer.get(1, "a->b"))
        third.result()


def test_space_that_only_a_later_stage_could_free_is_an_error_at_once(tmp_path: Path):
    plan = plan_of(
        [group("train", 1, 1, ["a", "b"])],
        [stage("a", "train", Mesh()), stage("b", "train", Mesh(), "Tokens")],
        {"a->b": ["ids"]},
        batch_size=1,
        group_size=1,
        memory="1Mi",
    )
    with (
        in_process(plan, tmp_path) as gang,
        pytest.raises(DeadlineExceeded, match="this step needs at least 1,601,536"),
    ):
        gang.client("train", 0).put(1, "a->b", rows([0], 1, [200_000]), deadline_seconds=60 * TEST_TIMEOUT_SECONDS)


def test_drain_returns_when_all_is_read_and_else_names_the_reader(tmp_path: Path):
    plan = two_stages((1, 1), (1, 1))
    with in_process(plan, tmp_path) as gang:
        producer = gang.client("rollout", 0)
        producer.drain(1.0)
        producer.put(1, "a->b", part(plan, 1, 0, 1))
        with pytest.raises(DeadlineExceeded, match="rank 0 of group rollout waited .* not yet read by host train-0"):
            producer.drain(0.1)
        gang.client("train", 0).get(1, "a->b")
        producer.drain(5.0)


def test_an_arena_that_does_not_fit_is_exit_74_with_the_size(tmp_path: Path):
    gang = Gang(two_stages(memory="64Ti"), tmp_path)
    gang.write_files()
    ended = run_warm("rljob_worker.databuffer", environment={**os.environ, **gang.environment("rollout", 0)})
    assert ended.returncode == 74
    assert "cannot reserve 70,368,744,177,664 bytes" in ended.stderr and "lower dataBuffer.memory" in ended.stderr


def test_sigterm_ends_one_that_has_no_supervisor_and_leaves_nothing_behind(tmp_path: Path):
    with warm_processes(two_stages(), tmp_path, **{LIFELINE_FD: ""}) as gang:
        for process in gang.processes.values():
            process.send_signal(signal.SIGTERM)
        assert [process.wait() for process in gang.processes.values()] == [0, 0]
        assert not list(tmp_path.glob(f"{ARENA.prefix}*")) and not list(tmp_path.glob("*.sock"))


def test_the_word_and_the_end_of_the_supervisor_leave_nothing_behind(tmp_path: Path):
    with warm_processes(two_stages(), tmp_path) as gang:
        assert len(list(tmp_path.glob(f"{ARENA.prefix}*"))) == 2
        for process in gang.processes.values():
            process.send_signal(signal.SIGTERM)  # which means the workers
        gang.processes["rollout-0"].send_signal(signal.SIGHUP)
        pipe = gang.processes["train-0"].stdin
        pipe.close()
        assert [process.wait() for process in gang.processes.values()] == [0, 0]
        assert not list(tmp_path.glob(f"{ARENA.prefix}*")) and not list(tmp_path.glob("*.sock"))


def test_what_a_killed_predecessor_left_is_removed_and_a_neighbours_is_kept(tmp_path: Path):
    (tmp_path / "not-ours").write_text("kept")
    with warm_processes(two_stages(), tmp_path) as gang:
        before = set(tmp_path.glob(f"{ARENA.prefix}*"))
        gang.processes["rollout-0"].kill()
        gang.processes["rollout-0"].wait()
        again = BufferProcess(gang, "rollout", 0)
        gang.processes["again"] = again
        assert again.stdout.readline()
        after = set(tmp_path.glob(f"{ARENA.prefix}*"))
    assert len(before) == len(after) == 2 and len(before & after) == 1
    assert (tmp_path / "not-ours").exists()


def test_metrics_and_health_over_http(tmp_path: Path):
    plan = two_stages((1, 1), (1, 1))
    with in_process(plan, tmp_path) as gang:
        gang.client("rollout", 0).put(1, "a->b", part(plan, 1, 0, 1))
        got = gang.client("train", 0).get(1, "a->b")
        base = {name: f"http://127.0.0.1:{ports['metrics_port']}" for name, ports in gang.ready.items()}
        with urllib.request.urlopen(f"{base['train-0']}/healthz") as answer:
            assert answer.read() == b"ok\n"
        with urllib.request.urlopen(f"{base['rollout-0']}/metrics") as answer:
            made = answer.read().decode()
        with urllib.request.urlopen(f"{base['train-0']}/metrics") as answer:
            used = answer.read().decode()
    assert 'rljob_buffer_rows_total{edge="a->b"} 16.0' in made
    assert 'rljob_buffer_received_bytes_total{edge="a->b"}' in used
    assert f'rljob_buffer_resident_bytes{{of="rows"}} {4096.0 * -(-got.nbytes // 4096)}' in used


def test_statistics_split_waiting_from_transfer_and_start_again(tmp_path: Path):
    plan = two_stages((1, 1), (1, 1))
    with in_process(plan, tmp_path) as gang, ThreadPoolExecutor(1) as pool:
        producer, consumer = gang.client("rollout", 0), gang.client("train", 0)
        waiting = pool.submit(consumer.get, 1, "a->b")
        producer.put(1, "a->b", part(plan, 1, 0, 1))
        waiting.result()
        figures = consumer.statistics()
        assert figures["get_rows/a->b"] == 16
        parts = figures["producer_seconds/a->b"], figures["transfer_seconds/a->b"]
        assert min(parts) > 0 and sum(parts) <= figures["get_seconds/a->b"]
        assert consumer.statistics() == {}
        put = producer.statistics()
        assert 0 < put["room_seconds/a->b"] < put["put_seconds/a->b"]


def test_tensor_parallel_peers_map_the_same_segment_once(tmp_path: Path):
    plan = two_stages((1, 1), (1, 4), tp=2)
    with in_process(plan, tmp_path) as gang:
        gang.client("rollout", 0).put(1, "a->b", part(plan, 1, 0, 1))
        clients = [gang.client("train", rank) for rank in range(4)]
        got = [client.get(1, "a->b") for client in clients]
        assert same(got[0], got[1]) and same(got[2], got[3]) and not same(got[0], got[2])
        assert not got[0]["ids"].values.flags.writeable
        with urllib.request.urlopen(f"http://127.0.0.1:{gang.ready['train-0']['metrics_port']}/metrics") as answer:
            resident = next(
                line for line in answer.read().decode().splitlines() if line.startswith("rljob_buffer_resident_bytes")
            )
        assert float(resident.split()[1]) == 2 * 4096  # two shares for four ranks


def test_a_row_that_no_message_can_carry_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = two_stages((1, 1), (1, 1), batch_size=1, group_size=2)
    monkeypatch.setattr(client, "ROW_BYTES", 1_000)
    with in_process(plan, tmp_path) as gang:
        # 200 of 8 bytes, index 24, offset 8, score 4
        words = r"edge a->b: row 2 has 1,636 bytes, at most 1,000 are sent; the largest column is ids: leave it out of"
        with pytest.raises(BadData, match=words):
            gang.client("rollout", 0).put(1, "a->b", rows([0, 1], 2, [10, 200]))
        gang.client("rollout", 0).put(1, "a->b", rows([0, 1], 2, [10, 20]))


def test_a_row_may_have_a_gibibyte(tmp_path: Path):
    assert ROW_BYTES == 1 << 30
    plan = two_stages((1, 1), (1, 1), batch_size=1, group_size=1, memory="96Mi")
    with in_process(plan, tmp_path) as gang:
        row = rows([0], 1, [10_000_000])  # more than the 64 MiB of a piece of many rows
        gang.client("rollout", 0).put(1, "a->b", row)
        assert same(gang.client("train", 0).get(1, "a->b"), row.select(["ids", "score"]))


def test_a_test_that_fails_leaves_no_connection_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    close, closed = BufferClient.close, list[BufferClient]()
    monkeypatch.setattr(BufferClient, "close", lambda client: (close(client), closed.append(client)))
    with pytest.raises(ZeroDivisionError), in_process(two_stages(), tmp_path) as gang:
        clients = [gang.client("train", rank) for rank in range(2)]
        raise ZeroDivisionError("the test's own")
    assert closed == clients
