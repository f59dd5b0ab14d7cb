"""A worker and the data buffer of its host."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.flight as flight
import pytest

from rljob_worker.databuffer.links import own
from rljob_worker.databuffer.links.faults import Refused
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.links.own import OwnBuffer
from rljob_worker.databuffer.links.tests.pair import groups, identity
from rljob_worker.databuffer.protocol.codec import encode
from rljob_worker.databuffer.protocol.worker_side import (
    Done,
    Flag,
    GetRows,
    IsStopRequested,
    NotYet,
    WorkerAnswer,
    WorkerRequest,
)
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.server.flight import serve_workers
from rljob_worker.errors import BadData, DeadlineExceeded, InvalidJob, PeerLost

HERE = Host("a", 0)
Answers = Callable[[Identity, WorkerRequest], WorkerAnswer]


@contextlib.contextmanager
def buffer(directory: Path, answers: Answers, life: str = "first") -> Iterator[OwnBuffer]:
    socket = directory / "sock"
    with serve_workers(f"grpc+unix://{socket}", identity(HERE), life, groups(), answers), worker(directory) as client:
        yield client


@contextlib.contextmanager
def worker(directory: Path) -> Iterator[OwnBuffer]:
    with contextlib.closing(OwnBuffer(directory / "sock", identity(HERE, rank=1))) as client:
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
    monkeypatch.setattr(own, "GRACE_SECONDS", 0.2)
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
    assert (own.CALL_SECONDS, own.GRACE_SECONDS) == (30.0, 10.0)
    monkeypatch.setattr(own, "CALL_SECONDS", 0.2)
    go_on = threading.Event()

    def answers(caller: Identity, request: WorkerRequest) -> WorkerAnswer:
        go_on.wait()
        return Done()

    with buffer(tmp_path, answers) as client:
        with pytest.raises(PeerLost, match="own sidecar.* did not answer in time"):
            client.call(IsStopRequested())
        go_on.set()


def test_an_answer_in_two_parts_is_one(tmp_path: Path):
    class TwoParts(flight.FlightServerBase):  # type: ignore[misc]
        def do_action(self, context: object, action: object) -> list[bytes]:
            whole = encode(Flag(value=True))
            return [whole[:3], whole[3:]]

    with TwoParts(f"grpc+unix://{tmp_path}/sock"), worker(tmp_path) as client:
        assert client.call(IsStopRequested()) == Flag(value=True)


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
    with buffer(tmp_path, lambda caller, request: Done(), "first") as client:
        client.expect("first")
        assert client.call(IsStopRequested()) == Done()
    with buffer(tmp_path, lambda caller, request: Done(), "second") as client:
        client.expect("first")
        with pytest.raises(Refused, match="own sidecar.*it has restarted, and the rows it held are lost"):
            client.call(IsStopRequested())
        client.expect("second")
        assert client.call(IsStopRequested()) == Done()


def test_a_worker_without_a_token_calls_nobody(tmp_path: Path):
    with pytest.raises(InvalidJob, match="RLJOB_TOKEN_FILE is empty"):
        OwnBuffer(tmp_path / "sock", identity(HERE, rank=0, token=""))
