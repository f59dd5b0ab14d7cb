"""Questions to peers that answer, fail, hang or speak nonsense."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.flight as flight
import pytest

from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.links.connection import PeerConnection, ask_all
from rljob_worker.databuffer.links.faults import to_flight
from rljob_worker.databuffer.links.tests.pair import identity
from rljob_worker.databuffer.protocol.codec import encode, opened, sealed
from rljob_worker.databuffer.protocol.errors import Away, Damaged, Malformed
from rljob_worker.databuffer.protocol.peer_side import Question, WhatDoTheyDo
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.errors import BadData, PeerLost

PEERS = [Host("b", index) for index in range(3)]


class Answering(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, answer: Callable[[], bytes]) -> None:
        self._answer = answer
        super().__init__("grpc+tcp://127.0.0.1:0")

    def do_action(self, context: object, action: flight.Action) -> list[bytes]:
        assert action.type == "ask" and opened(action.body, "a call") == encode(WhatDoTheyDo())
        return [sealed(self._answer())]


@contextlib.contextmanager
def peers(*answers: Callable[[], bytes]) -> Iterator[dict[Host, PeerConnection]]:
    """Connections to data buffers that answer so."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Answering(answer)) for answer in answers]
        yield {
            host: PeerConnection(
                host, AddressBook(f"127.0.0.1:{server.port}", "testing"), identity(Host("a", 0)), "life"
            )
            for host, server in zip(PEERS, servers, strict=False)
        }


def ask(connections: dict[Host, PeerConnection], seconds: float = 10.0) -> dict[Host, Any]:
    question: Question = WhatDoTheyDo()
    return dict(ask_all(connections, question, seconds))


def test_everybody_is_asked_at_once():
    everybody = threading.Barrier(3)

    def answer() -> bytes:
        return encode({"0": everybody.wait()})

    with peers(answer, answer, answer) as connections:
        assert sorted(said["0"] for said in ask(connections).values()) == [0, 1, 2]


def test_nobody_is_nobody():
    assert ask({}) == {}


def test_a_peer_that_hangs_costs_the_time_and_no_more():
    go_on = threading.Event()
    with peers(lambda: encode({"0": "trains"}), lambda: bytes(go_on.wait())) as connections:
        answers = ask(connections, 0.3)
        go_on.set()
    assert answers[PEERS[0]] == {"0": "trains"}
    assert isinstance(answers[PEERS[1]], PeerLost)
    assert "the data buffer of host b-1 did not answer in" in str(answers[PEERS[1]])


class Noisy:
    """A connection that damages the first answers."""

    peer_name = "the data buffer of host b-0"

    def __init__(self, num_damaged: int) -> None:
        self.num_damaged = num_damaged

    def act(self, action: str, body: bytes, seconds: float) -> bytes:
        self.num_damaged -= 1
        if self.num_damaged >= 0:
            raise Damaged("an answer")
        return encode({"0": "trains"})


def test_a_question_is_asked_again_once_if_the_answer_was_damaged():
    once, twice = (ask({PEERS[0]: Noisy(number)})[PEERS[0]] for number in (1, 2))  # type: ignore[dict-item]
    assert once == {"0": "trains"} and type(twice) is Damaged


class Deaf:
    """A connection whose calls do not end with their time."""

    peer_name = "the data buffer of host b-0"

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.thread = ""

    def act(self, action: str, body: bytes, seconds: float) -> bytes:
        self.thread = threading.current_thread().name
        self.go_on.wait()
        return b""


def test_no_call_is_waited_for_longer_than_asked():
    deaf = Deaf()
    error = ask({PEERS[0]: deaf}, 0.1)[PEERS[0]]  # type: ignore[dict-item]
    deaf.go_on.set()
    assert type(error) is PeerLost and str(error) == "the data buffer of host b-0 did not answer in 0.1 s"
    assert deaf.thread.startswith("questions")


def test_errors_are_told_as_lost_peers():
    def fails() -> bytes:
        raise to_flight(BadData("no such step"))

    def away() -> bytes:
        raise flight.FlightUnavailableError("gone")

    with peers(fails, away) as connections:
        answers = ask(connections)
    assert type(answers[PEERS[0]]) is PeerLost
    assert str(answers[PEERS[0]]) == "the data buffer of host b-0: no such step"
    assert type(answers[PEERS[1]]) is Away and "host b-1 does not answer: gone" in str(answers[PEERS[1]])


@pytest.mark.parametrize("nonsense", [b"", b"\xc1", encode([1, 2]), b"\x81\xa1\xff\x01", b"\x91" * 100_000])  # type: ignore[arg-type]
def test_an_answer_that_is_none_is_refused_by_name(nonsense: bytes):
    with peers(lambda: nonsense) as connections:
        error = ask(connections)[PEERS[0]]
    assert type(error) is Malformed
    assert str(error).startswith(f"the data buffer of host b-0 gave {len(nonsense):,} bytes that are not an answer: ")
