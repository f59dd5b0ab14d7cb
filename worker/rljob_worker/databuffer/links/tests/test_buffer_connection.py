"""A worker and the data buffer of its host."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.databuffer.links import buffer_connection
from rljob_worker.databuffer.links.buffer_connection import BufferConnection, ConnectionPool
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.links.tests.pair import groups, identity
from rljob_worker.databuffer.protocol.codec import encode
from rljob_worker.databuffer.protocol.errors import Refused
from rljob_worker.databuffer.protocol.worker_answers import Done, Flag, NotYet, WorkerAnswer
from rljob_worker.databuffer.protocol.worker_calls import GetRows, IsStopRequested, WorkerRequest
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.server.local import serve_workers
from rljob_worker.errors import BadData, DeadlineExceeded, InvalidJob, PeerLost
from rljob_worker.process import frames
from rljob_worker.tests.waiting import wait_for

HERE = Host("a", 0)
Answers = Callable[[Identity, WorkerRequest], WorkerAnswer]


@contextlib.contextmanager
def buffer(directory: Path, answers: Answers, life: str = "first") -> Iterator[BufferConnection]:
    path = directory / "sock"
    path.unlink(missing_ok=True)
    with serve_workers(path, identity(HERE), life, groups(), answers), worker(directory) as client:
        yield client


@contextlib.contextmanager
def worker(directory: Path) -> Iterator[BufferConnection]:
    with contextlib.closing(BufferConnection(directory / "sock", identity(HERE, rank=1))) as client:
        yield client


def get(waited: float) -> GetRows:
    return GetRows(edge="a->b", step=1, waited=waited, seconds=5.0)


def test_a_request_has_one_answer_and_tells_who_asks(tmp_path: Path):
    asked: list[tuple[int, WorkerRequest]] = []

    def answers(caller: Identity, request: WorkerRequest) -> WorkerAnswer:
        asked.append((caller.rank, request))
        return Flag(value=True)

    with buffer(tmp_path, answers) as client:
        assert client.call(IsStopRequested()) == Flag(value=True)
        assert asked == [(1, IsStopRequested())]


def test_a_wait_asks_again_and_says_how_long_it_has_waited(tmp_path: Path):
    waits: list[float] = []

    def answers(caller: Identity, request: WorkerRequest) -> WorkerAnswer:
        assert isinstance(request, GetRows)
        waits.append(request.waited)
        return NotYet() if len(waits) < 4 else Done()

    with buffer(tmp_path, answers) as client:
        assert client.poll(get, 5.0) == Done()
        assert len(waits) == 4 and waits == sorted(waits) and 0.0 <= waits[0] < waits[3] < 5.0


def test_a_data_buffer_that_never_answers_is_given_up_after_the_wait_and_some_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(buffer_connection, "GRACE_SECONDS", 0.2)
    with buffer(tmp_path, lambda caller, request: NotYet()) as client:
        waited: list[float] = []

        def request(seconds: float) -> GetRows:
            waited.append(seconds)
            return get(seconds)

        with pytest.raises(DeadlineExceeded, match=r"own sidecar.* had no answer to GetRows\(.*edge='a->b'.* in 0 s"):
            client.poll(request, 0.1)
        # only the last was asked after the time and the grace
        assert waited[-2] <= 0.1 + 0.2 < waited[-1]


def test_a_data_buffer_that_hangs_is_a_lost_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert (buffer_connection.CALL_SECONDS, buffer_connection.GRACE_SECONDS) == (30.0, 10.0)
    monkeypatch.setattr(buffer_connection, "CALL_SECONDS", 0.2)
    go_on = threading.Event()

    def answers(caller: Identity, request: WorkerRequest) -> WorkerAnswer:
        go_on.wait()
        return Done()

    with buffer(tmp_path, answers) as client:
        with pytest.raises(PeerLost, match="own sidecar.* did not answer in time"):
            client.call(IsStopRequested())
        go_on.set()


@contextlib.contextmanager
def by_hand(directory: Path) -> Iterator[tuple[socket.socket, BufferConnection]]:
    """In the place of a data buffer a socket that listens."""
    with socket.socket(socket.AF_UNIX) as listener, worker(directory) as client:
        listener.bind(str(directory / "sock"))
        listener.listen()
        listener.settimeout(TEST_TIMEOUT_SECONDS)
        yield listener, client


@contextlib.contextmanager
def admitted(listener: socket.socket) -> Iterator[socket.socket]:
    """The connection of a worker that has introduced itself."""
    channel, _ = listener.accept()
    with channel:
        assert b"x-rljob-token" in frames.receive_frame(channel, 1000)
        frames.send_frame(channel, encode(Done()))
        yield channel


def test_an_answer_in_parts_is_one(tmp_path: Path):
    with by_hand(tmp_path) as (listener, client), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.call, IsStopRequested())
        with admitted(listener) as channel:
            assert frames.receive_frame(channel, 1000) == encode(IsStopRequested())
            whole = encode(Flag(value=True))
            for piece in (frames.length_of(whole)[:2], frames.length_of(whole)[2:] + whole[:3], whole[3:]):
                channel.sendall(piece)
            assert asked.result(TEST_TIMEOUT_SECONDS) == Flag(value=True)


def test_a_data_buffer_that_hangs_up_in_the_middle_is_a_lost_peer(tmp_path: Path):
    with by_hand(tmp_path) as (listener, client), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.call, IsStopRequested())
        with admitted(listener) as channel:
            frames.receive_frame(channel, 1000)
            channel.sendall(frames.length_of(b"long")[:3])
        with pytest.raises(PeerLost, match="own sidecar.* does not answer: it hung up"):
            asked.result(TEST_TIMEOUT_SECONDS)


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(buffer_connection, "CALL_SECONDS", 0.2)
    go_on = threading.Event()

    def answers(caller: Identity, request: WorkerRequest) -> WorkerAnswer:
        if isinstance(request, GetRows):
            go_on.wait(TEST_TIMEOUT_SECONDS)
            return Done()
        return Flag(value=True)

    with buffer(tmp_path, answers) as client:
        with pytest.raises(PeerLost, match="did not answer in time"):
            client.call(get(0.0))
        go_on.set()
        monkeypatch.setattr(buffer_connection, "CALL_SECONDS", 30.0)
        assert client.call(IsStopRequested()) == Flag(value=True)


def test_one_connection_is_enough_for_one_request_after_the_other(tmp_path: Path):
    with by_hand(tmp_path) as (listener, client), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: [client.call(IsStopRequested()) for _ in range(3)])
        with admitted(listener) as channel:
            for number in range(3):
                assert frames.receive_frame(channel, 1000) == encode(IsStopRequested())
                frames.send_frame(channel, encode(Flag(value=number == 1)))
            assert asked.result(TEST_TIMEOUT_SECONDS) == [Flag(value=False), Flag(value=True), Flag(value=False)]


def test_a_connection_that_ended_while_nobody_used_it_is_made_anew(tmp_path: Path):
    with worker(tmp_path) as client:
        for life in ("first", "second"):
            with buffer(tmp_path, lambda caller, request: Done(), life):
                assert client.call(IsStopRequested()) == Done()


@pytest.mark.parametrize("kind", [BadData, DeadlineExceeded, PeerLost])
def test_errors_keep_their_names(tmp_path: Path, kind: type[Exception]):
    def answers(caller: Identity, request: WorkerRequest) -> WorkerAnswer:
        raise kind("rank 1 of group b is late")

    with buffer(tmp_path, answers) as client, pytest.raises(kind, match="^rank 1 of group b is late$") as caught:
        client.poll(get, 5.0)
    assert type(caught.value) is kind


def test_a_data_buffer_that_is_gone_is_a_lost_peer_named_as_the_own_one(tmp_path: Path):
    with buffer(tmp_path, lambda caller, request: Done()) as client:
        assert client.call(IsStopRequested()) == Done()
    with (
        worker(tmp_path) as client,
        pytest.raises(PeerLost, match=r"host a-0 \(own sidecar, .*/sock\) does not answer"),
    ):
        client.call(IsStopRequested())


def test_a_restarted_data_buffer_does_not_pass_for_the_one_before(tmp_path: Path):
    with worker(tmp_path) as client:
        with buffer(tmp_path, lambda caller, request: Done(), "first"):
            client.expect("first")
            assert client.call(IsStopRequested()) == Done()
        with buffer(tmp_path, lambda caller, request: Done(), "second"):
            with pytest.raises(Refused, match="own sidecar.*it has restarted, and the rows it held are lost"):
                client.call(IsStopRequested())
            client.expect("second")
            assert client.call(IsStopRequested()) == Done()


def test_whom_a_worker_expects_is_said_on_a_connection_that_it_already_had(tmp_path: Path):
    with buffer(tmp_path, lambda caller, request: Done(), "second") as client:
        assert client.call(IsStopRequested()) == Done()
        client.expect("first")
        with pytest.raises(Refused, match="has restarted"):
            client.call(IsStopRequested())


def test_no_connection_is_left_after_the_end(tmp_path: Path):
    before = set(threading.enumerate())
    with buffer(tmp_path, lambda caller, request: Done()) as client:
        assert client.call(IsStopRequested()) == Done()
        client.close()
        assert client.call(IsStopRequested()) == Done()
        wait_for(lambda: len(set(threading.enumerate()) - before) == 1)  # who accepts, and nobody who serves


def test_a_worker_without_a_token_calls_nobody(tmp_path: Path):
    with pytest.raises(InvalidJob, match="RLJOB_TOKEN_FILE is empty"):
        BufferConnection(tmp_path / "sock", identity(HERE, rank=0, token=""))


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    made = [socket.socketpair() for _ in range(3)]
    yield made
    for ours, theirs in made:
        ours.close()
        theirs.close()


def is_closed(connection: socket.socket) -> bool:
    return connection.fileno() == -1


def test_the_connection_used_last_is_the_next(pairs: list[tuple[socket.socket, socket.socket]]):
    kept = ConnectionPool(2)
    first, second, third = (ours for ours, _ in pairs)
    assert kept.take() is None
    for item in (first, second, third):
        kept.keep(item)
    assert is_closed(third)  # two are enough
    assert (kept.take(), kept.take(), kept.take()) == (second, first, None)


def test_connections_that_have_ended_are_not_taken(pairs: list[tuple[socket.socket, socket.socket]]):
    kept = ConnectionPool(3)
    for ours, _ in pairs:
        kept.keep(ours)
    pairs[2][1].close()
    pairs[1][1].sendall(b"nobody asked")
    assert kept.take() is pairs[0][0]
    assert is_closed(pairs[2][0]) and is_closed(pairs[1][0])


def test_after_the_end_nothing_is_kept(pairs: list[tuple[socket.socket, socket.socket]]):
    kept = ConnectionPool(3)
    kept.keep(pairs[0][0])
    kept.hang_up()
    assert is_closed(pairs[0][0])
    kept.keep(pairs[1][0])
    kept.close()
    kept.keep(pairs[2][0])
    assert is_closed(pairs[1][0]) and is_closed(pairs[2][0]) and kept.take() is None
