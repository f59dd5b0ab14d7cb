"""Data buffers that hang, dawdle, die and come back: waiters are informed by name, and never of their own one."""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.databuffer.rows.tests.batches import same
from rljob_worker.databuffer.tests.failing_peers import Forked, forked
from rljob_worker.databuffer.tests.gang import part, two_stages
from rljob_worker.errors import PeerLost, RLJobError

EDGE = "a->b"
COLUMNS = ("ids", "score")
SOON = {"RLJOB_BUFFER_RETRY_SECONDS": "1"}
"""After which a peer that says nothing is lost, of five by default."""


def error_of(waiting: Future[object]) -> RLJobError:
    with pytest.raises(RLJobError) as caught:
        waiting.result(TEST_TIMEOUT_SECONDS)
    return caught.value


def test_a_host_that_hangs_is_named_to_those_that_wait(tmp_path: Path):
    """rollout-0 is below train-0 and above rollout-2."""
    plan = two_stages((3, 1), (1, 1), deadline_seconds=TEST_TIMEOUT_SECONDS)
    with forked(plan, tmp_path, **SOON) as gang, ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(gang.gang.client("train", 0).get, 1, EDGE)]
        waits.append(pool.submit(gang.gang.client("rollout", 2).await_announcement, "verdict", 1))
        gang.send(signal.SIGSTOP, "rollout-0")
        for item in waits:
            error = error_of(item)
            assert isinstance(error, PeerLost) and "data buffer of host rollout-0 " in str(error), str(error)
            assert "own sidecar" not in str(error)


@pytest.mark.slow
def test_hosts_that_hang_are_named_and_those_that_go_on_in_time_are_not(tmp_path: Path):
    """Eight hosts; three of them hang: two inner ones of the tree, rollout-0 and rollout-1, and a leaf."""
    plan = two_stages((7, 1), (1, 1), balance="Tokens", batch_size=14, deadline_seconds=TEST_TIMEOUT_SECONDS)
    hung = ("rollout-0", "rollout-1", "rollout-6")
    with forked(plan, tmp_path, RLJOB_BUFFER_RETRY_SECONDS="4") as gang, ThreadPoolExecutor(8) as pool:
        consumer = gang.gang.client("train", 0)
        producers = [gang.gang.client("rollout", rank) for rank in range(7)]
        gang.send(signal.SIGSTOP, *hung)
        waiting = pool.submit(consumer.get, 1, EDGE)
        for rank in (2, 3, 4, 5):
            producers[rank].put(1, EDGE, part(plan, 1, rank, 7))
        gang.send(signal.SIGCONT, *hung)
        for rank in (0, 1, 6):
            producers[rank].put(1, EDGE, part(plan, 1, rank, 7))
        assert same(waiting.result(TEST_TIMEOUT_SECONDS), part(plan, 1, 0, 1).select(COLUMNS))
        gang.send(signal.SIGSTOP, *hung)
        waits = [pool.submit(consumer.get, 2, EDGE)]
        waits += [pool.submit(producers[rank].await_announcement, "verdict", 1) for rank in (2, 3, 4, 5)]
        for item in waits:
            error = error_of(item)
            assert isinstance(error, PeerLost)
            assert any(f"host {name} " in str(error) for name in hung), str(error)
            assert not any(f"host {name} " in str(error) for name in ("train-0", "rollout-2", "rollout-5"))
            assert "own sidecar" not in str(error)


@contextmanager
def dawdling(gang: Forked, host: str) -> Iterator[None]:
    """Stops and goes on every 0.2 seconds."""
    over = threading.Event()

    def dawdle() -> None:
        while not over.wait(0.2):
            gang.send(signal.SIGSTOP, host)
            over.wait(0.2)
            gang.send(signal.SIGCONT, host)

    with ThreadPoolExecutor(1) as pool:
        dawdles = pool.submit(dawdle)
        try:
            yield
        finally:
            over.set()
            dawdles.result()


def test_a_slow_peer_is_waited_for(tmp_path: Path):
    plan = two_stages((2, 1), (1, 1), balance="Tokens", deadline_seconds=TEST_TIMEOUT_SECONDS)
    with forked(plan, tmp_path) as gang, dawdling(gang, "rollout-1"):
        consumer, producers = gang.gang.client("train", 0), [gang.gang.client("rollout", rank) for rank in range(2)]
        for step in range(1, 5):
            for rank, producer in enumerate(producers):
                producer.put(step, EDGE, part(plan, step, rank, 2))
            result = consumer.get(step, EDGE)
            assert same(result, part(plan, step, 0, 1).select(COLUMNS))
            consumer.release(result)


LENGTHS = [100_000] * 64  # of 8 bytes


@pytest.mark.parametrize(
    "phase",
    [
        "before its offer",
        pytest.param("after its offer", marks=pytest.mark.slow),
        "in mid-stream",
        pytest.param("after its receipt", marks=pytest.mark.slow),
    ],
)
def test_a_killed_peer_is_named_whatever_it_was_doing(tmp_path: Path, phase: str):
    """rollout-2 is below rollout-0: not even a neighbour of train-0, which waits."""
    plan = two_stages((3, 1), (1, 1), deadline_seconds=TEST_TIMEOUT_SECONDS, memory="64Mi")
    with forked(plan, tmp_path, **SOON) as gang, ThreadPoolExecutor(2) as pool:
        consumer, producers = gang.gang.client("train", 0), [gang.gang.client("rollout", rank) for rank in range(3)]
        puts = [
            partial(producer.put, 1, EDGE, part(plan, 1, rank, 3, LENGTHS)) for rank, producer in enumerate(producers)
        ]
        waiting = pool.submit(consumer.get, 1, EDGE)
        puts[0]()
        if phase != "before its offer":
            puts[2]()
        if phase == "in mid-stream":
            puts[1]()
        if phase == "after its receipt":
            puts[1]()
            consumer.release(waiting.result(TEST_TIMEOUT_SECONDS))
            waiting = pool.submit(consumer.get, 2, EDGE)
        gang.send(signal.SIGKILL, "rollout-2")
        other = pool.submit(producers[0].await_announcement, "verdict", 1)
        if phase == "in mid-stream" and not waiting.exception(TEST_TIMEOUT_SECONDS):
            waiting = pool.submit(consumer.get, 2, EDGE)  # it was quicker
        for item in (waiting, other):
            error = error_of(item)
            assert isinstance(error, PeerLost) and "data buffer of host rollout-2" in str(error), str(error)


@pytest.mark.parametrize("host", ["train-0", "rollout-0"])
def test_the_leads_host_and_an_inner_one_are_named_to_all_others(tmp_path: Path, host: str):
    """rollout-0 is below train-0 and above rollout-2."""
    plan = two_stages((3, 1), (1, 1), deadline_seconds=TEST_TIMEOUT_SECONDS)
    with forked(plan, tmp_path, **SOON) as gang, ThreadPoolExecutor(4) as pool:
        clients = {"train-0": gang.gang.client("train", 0)}
        clients |= {f"rollout-{rank}": gang.gang.client("rollout", rank) for rank in range(3)}
        waits = {name: pool.submit(client.await_announcement, "verdict", 1) for name, client in clients.items()}
        gang.send(signal.SIGKILL, host)
        for name, waiting in waits.items():
            error = error_of(waiting)
            assert isinstance(error, PeerLost) and f"data buffer of host {host} " in str(error)
            assert ("own sidecar" in str(error)) == (name == host)


def test_a_peer_that_came_back_is_not_the_one_it_was(tmp_path: Path):
    plan = two_stages((2, 1), (1, 1), deadline_seconds=TEST_TIMEOUT_SECONDS)
    with forked(plan, tmp_path, RLJOB_BUFFER_RETRY_SECONDS="30") as gang, ThreadPoolExecutor(1) as pool:
        consumer = gang.gang.client("train", 0)
        producers = [gang.gang.client("rollout", rank) for rank in range(2)]
        for rank, producer in enumerate(producers):
            producer.put(1, EDGE, part(plan, 1, rank, 2))
        assert same(consumer.get(1, EDGE), part(plan, 1, 0, 1).select(COLUMNS))  # they have met
        producers[1].put(2, EDGE, part(plan, 2, 1, 2))
        waiting = pool.submit(consumer.get, 2, EDGE)
        port = str(gang.gang.ready["rollout-1"]["port"])
        gang.send(signal.SIGKILL, "rollout-1")
        gang.start("rollout", 1, RLJOB_BUFFER_PORT=port, RLJOB_LISTEN="127.0.0.1")
        error = error_of(waiting)
        assert isinstance(error, PeerLost) and "rollout-1" in str(error) and "restarted" in str(error), str(error)
