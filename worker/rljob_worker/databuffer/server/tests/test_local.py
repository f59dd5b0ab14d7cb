"""The server for workers over a real socket: what is not a request of ours is refused, bounded and named, and the next
request is served."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.databuffer.links.buffer_connection import MAX_BYTES
from rljob_worker.databuffer.links.fencing import BufferService, Fence, Identity, headers_of, introduction_of
from rljob_worker.databuffer.links.tests.pair import groups, identity
from rljob_worker.databuffer.protocol.codec import encode, read_admission, read_answer
from rljob_worker.databuffer.protocol.worker_answers import Done, Failed, Flag, NotYet, TurnedAway, WorkerAnswer
from rljob_worker.databuffer.protocol.worker_calls import SetStatus, WorkerHello, WorkerRequest
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.server.local import MAX_INTRODUCTION_BYTES, LocalServer, serve_workers
from rljob_worker.databuffer.server.tests.damage import damaged
from rljob_worker.errors import BadData
from rljob_worker.process import frames
from rljob_worker.tests.waiting import wait_for

HERE = Host("a", 0)
LIFE = "the-life-of-here"
WORKER = introduction_of(headers_of(identity(HERE, rank=1), HERE, "life", None))
REQUEST = encode(SetStatus(status={"step": 1}))


class Answering:
    """What answers, and notes who asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, WorkerRequest]] = []
        self.raises: Exception | None = None

    def __call__(self, caller: Identity, request: WorkerRequest) -> WorkerAnswer:
        self.asked.append((caller.rank, request))
        if self.raises is not None:
            raise self.raises
        return Done()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Answering, Path]]:
    side, path = Answering(), tmp_path_factory.mktemp("s") / "sock"
    with serve_workers(path, identity(HERE), LIFE, groups(), side):
        yield side, path


@contextlib.contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    with introduced(path, WORKER) as channel:
        assert admission(channel) == Done()
        yield channel


@contextlib.contextmanager
def introduced(path: Path, introduction: bytes) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(TEST_TIMEOUT_SECONDS)
        channel.connect(str(path))
        frames.send_frame(channel, introduction)
        yield channel


def admission(channel: socket.socket) -> Done | TurnedAway:
    reported: Done | TurnedAway = read_admission(frames.receive_frame(channel, MAX_BYTES))
    return reported


def answer_to(channel: socket.socket, request: bytes = REQUEST) -> Any:
    frames.send_frame(channel, request)
    return answer(channel)


def answer(channel: socket.socket) -> Any:
    return read_answer(frames.receive_frame(channel, MAX_BYTES))


def test_a_connection_has_one_answer_to_each_request(served: tuple[Answering, Path]):
    side, path = served
    with connected(path) as channel:
        for request in (SetStatus(status={"step": 1}), WorkerHello(), SetStatus(status={})):
            assert answer_to(channel, encode(request)) == Done()
            assert side.asked[-1] == (1, request)


@pytest.mark.parametrize(
    "body, words",
    [
        (b"", "0 bytes are not a request of a worker"),
        (encode(NotYet()), "bytes are not a request of a worker: Invalid value 'NotYet'"),
        (REQUEST[:-1], "bytes are not a request of a worker"),
    ],
)
def test_what_no_worker_asks_is_refused_by_name(served: tuple[Answering, Path], body: bytes, words: str):
    side, path = served
    num_asked = len(side.asked)
    with connected(path) as channel:
        reported = answer_to(channel, body)
        assert reported.kind == "Malformed" and words in reported.words
        assert len(side.asked) == num_asked and answer_to(channel) == Done()


@given(st.data())
def test_whatever_the_bytes_the_next_request_is_served(served: tuple[Answering, Path], data: Any):
    body = data.draw(st.one_of(st.binary(max_size=200), damaged(REQUEST)))
    with connected(served[1]) as channel:
        reported = answer_to(channel, body)
        assert reported == Done() or (reported.kind == "Malformed" and len(reported.words) < 500)
        assert answer_to(channel) == Done()


@pytest.mark.parametrize(
    "lies, words",
    [
        ({"token": "guessed"}, "a-0 does not have the token of this job"),
        ({"attempt": 0}, "a-0 is of attempt 0, this data buffer serves attempt 1"),
        ({"rank": 2}, "the plan has no rank 2 of group a on host a-0"),
        ({"rank": -1}, "the data buffer of host a-0 speaks to the side for the workers of its host"),
    ],
)
def test_a_stranger_is_turned_away_before_any_request(served: tuple[Answering, Path], lies: dict[str, Any], words: str):
    side, path = served
    num_asked = len(side.asked)
    with introduced(
        path, introduction_of(headers_of(identity(HERE, **{"rank": 1, **lies}), HERE, "life", None))
    ) as channel:
        assert admission(channel) == TurnedAway(reason=words)
        assert channel.recv(1) == b"" and len(side.asked) == num_asked


def test_whoever_expects_another_process_is_turned_away(served: tuple[Answering, Path]):
    with introduced(served[1], introduction_of(headers_of(identity(HERE, rank=1), HERE, "life", "another"))) as channel:
        assert admission(channel) == TurnedAway(reason="it has restarted, and the rows it held are lost")
    with introduced(served[1], introduction_of(headers_of(identity(HERE, rank=1), HERE, "life", LIFE))) as channel:
        assert admission(channel) == Done()


@pytest.mark.parametrize(
    "introduction, words",
    [
        (b"", "0 bytes are not an introduction"),
        (REQUEST, "bytes are not an introduction"),
        (encode({"x-rljob-token": ["one", "two"]}), "a call shows 2 values of x-rljob-token, not one"),
        (bytes(MAX_INTRODUCTION_BYTES + 1), "65,537 bytes, at most 65,536 are read"),
    ],
)
def test_what_is_no_introduction_is_refused_by_name(served: tuple[Answering, Path], introduction: bytes, words: str):
    with introduced(served[1], introduction) as channel:
        reported = admission(channel)
        assert isinstance(reported, TurnedAway) and words in reported.reason
    with connected(served[1]) as channel:
        assert answer_to(channel) == Done()


@pytest.mark.parametrize("garbage", [b"", b"\x00", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100])
def test_a_connection_that_speaks_something_else_disturbs_nobody(served: tuple[Answering, Path], garbage: bytes):
    with socket.socket(socket.AF_UNIX) as stranger, connected(served[1]) as channel:
        stranger.connect(str(served[1]))
        stranger.sendall(garbage)
        assert answer_to(channel) == Done()


def test_a_request_that_is_too_long_is_refused_before_it_is_read(tmp_path: Path):
    fence = Fence(identity(HERE), LIFE, BufferService.WORKERS, groups())
    with LocalServer(tmp_path / "sock", fence, Answering(), max_bytes=1000):
        with connected(tmp_path / "sock") as channel:
            channel.sendall(frames.length_of(bytes(1001)))
            reported = answer(channel)
            assert reported == Failed(kind="Malformed", words="a request of 1,001 bytes, at most 1,000 are read")
            assert channel.recv(1) == b""
        with connected(tmp_path / "sock") as channel:
            assert "1,000 bytes are not a request" in answer_to(channel, bytes(1000)).words


@pytest.mark.parametrize(
    "raised, kind, words",
    [(BadData("too wide"), "BadData", "too wide"), (KeyError("edge"), "Bug", "a request: KeyError('edge')")],
)
def test_what_a_handler_raises_is_told_by_name(
    served: tuple[Answering, Path], raised: Exception, kind: str, words: str
):
    side, path = served
    side.raises = raised
    try:
        with connected(path) as channel:
            assert answer_to(channel) == Failed(kind=kind, words=words)
            side.raises = None
            assert answer_to(channel) == Done()
    finally:
        side.raises = None


def test_two_connections_are_served_at_once(tmp_path: Path):
    both = threading.Barrier(2)

    def side(caller: Identity, request: WorkerRequest) -> WorkerAnswer:
        both.wait(TEST_TIMEOUT_SECONDS)
        return Done()

    path = tmp_path / "sock"
    with (
        serve_workers(path, identity(HERE), LIFE, groups(), side),
        ThreadPoolExecutor(2) as pool,
        connected(path) as first,
        connected(path) as second,
    ):
        assert list(pool.map(answer_to, (first, second))) == [Done(), Done()]


def test_whoever_is_being_answered_at_the_end_gets_the_answer(tmp_path: Path):
    asked, go_on = threading.Event(), threading.Event()

    def side(caller: Identity, request: WorkerRequest) -> WorkerAnswer:
        asked.set()
        go_on.wait(TEST_TIMEOUT_SECONDS)
        return Flag(value=True)

    server = serve_workers(tmp_path / "sock", identity(HERE), LIFE, groups(), side)
    with ThreadPoolExecutor(2) as pool, connected(tmp_path / "sock") as busy, connected(tmp_path / "sock") as idle:
        answered = pool.submit(answer_to, busy)
        asked.wait(TEST_TIMEOUT_SECONDS)
        over = pool.submit(server.shutdown)
        assert idle.recv(1) == b""
        go_on.set()
        assert answered.result(TEST_TIMEOUT_SECONDS) == Flag(value=True)
        over.result(TEST_TIMEOUT_SECONDS)
        assert busy.recv(1) == b""
    with pytest.raises(ConnectionError), connected(tmp_path / "sock"):
        pass


def test_no_thread_is_left_of_a_worker_that_has_gone(tmp_path: Path):
    before = set(threading.enumerate())
    with serve_workers(tmp_path / "sock", identity(HERE), LIFE, groups(), Answering()):
        with connected(tmp_path / "sock") as channel:
            assert answer_to(channel) == Done()
        wait_for(lambda: len(set(threading.enumerate()) - before) == 1)  # who accepts
    wait_for(lambda: set(threading.enumerate()) <= before)
