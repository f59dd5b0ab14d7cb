"""The way to one peer, over real sockets."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from rljob_worker.databuffer.links.book import AddressBook
from rljob_worker.databuffer.links.connection import MAX_BYTES, OPTIONS, Connection
from rljob_worker.databuffer.links.faults import Away, Refused
from rljob_worker.databuffer.links.tests.pair import BATCH, SCHEMA, groups, identity, write_book
from rljob_worker.databuffer.protocol.codec import encode
from rljob_worker.databuffer.protocol.peer_side import ChunkTicket, Envelope, WhatDoTheyDo
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.server.flight import serve_peers
from rljob_worker.errors import BadData

HERE, PEER = Host("a", 0), Host("b", 0)
QUESTION = encode(WhatDoTheyDo())
TICKET = encode(ChunkTicket("weights", 1, 0, 0))


class Side:
    """A peer whose stream ends badly when it is told to, and which notes when a stream is over."""

    def __init__(self) -> None:
        self.fails: Exception | None = None
        self.lives: list[str] = []
        self.num_over = 0

    def take(self, sender: Host, life: str, envelope: Envelope) -> str:
        self.lives.append(life)
        return "theirs"

    def answer(self, question: object) -> dict[str, Any]:
        return {}

    def stream(self, ticket: object) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        return SCHEMA, self._batches()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        yield BATCH
        if self.fails is not None:
            raise self.fails
        yield BATCH


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def peer() -> Iterator[tuple[Side, str]]:
    side = Side()
    with serve_peers("127.0.0.1:0", identity(PEER), "theirs", groups(), side) as server:
        yield side, f"127.0.0.1:{server.port}"


def to(address: str, clock: Clock | None = None) -> Connection:
    return Connection(PEER, AddressBook(address, "testing"), identity(HERE), "ours", clock or Clock())


def test_what_is_asked_of_grpc():
    assert MAX_BYTES == 268_435_456
    assert dict(OPTIONS) == {
        "grpc.http2.bdp_probe": 0,
        "grpc.http2.lookahead_bytes": 2_097_152,
        "grpc.initial_reconnect_backoff_ms": 50,
        "grpc.max_reconnect_backoff_ms": 500,
        "grpc.min_reconnect_backoff_ms": 5000,
    }


def test_an_answer_in_two_parts_is_one():
    class TwoParts(flight.FlightServerBase):  # type: ignore[misc]
        def do_action(self, context: object, action: object) -> list[bytes]:
            return [b"the", b"irs"]

    with TwoParts("grpc+tcp://127.0.0.1:0") as server:
        assert to(f"127.0.0.1:{server.port}").act("deliver", b"", 5.0) == b"theirs"


def test_a_peer_is_told_our_life_and_answers(peer: tuple[Side, str]):
    side, address = peer
    connection = to(address)
    assert connection.act("deliver", encode(Envelope(0, ())), 5.0) == b"theirs" and side.lives == ["ours"]
    assert connection.act("ask", QUESTION, 5.0) == encode({})
    assert list(connection.stream(TICKET, 5.0)) == [BATCH, BATCH]
    connection.close()


def test_errors_name_the_peer_or_are_its_own(peer: tuple[Side, str]):
    side, address = peer
    side.fails = BadData("chunk 3 is damaged")
    connection = to(address)
    batches = connection.stream(TICKET, 5.0)
    assert next(batches) == BATCH
    with pytest.raises(BadData, match="^chunk 3 is damaged$"):
        next(batches)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with pytest.raises(Away, match="^the data buffer of host b-0 does not answer: "):
            to(f"127.0.0.1:{nobody.getsockname()[1]}").act("ask", QUESTION, 5.0)


def test_a_call_ends_with_its_time():
    go_on = threading.Event()

    class Hangs(flight.FlightServerBase):  # type: ignore[misc]
        def do_action(self, context: object, action: object) -> list[bytes]:
            go_on.wait()
            return []

        def do_get(self, context: object, ticket: object) -> None:
            go_on.wait()

    with Hangs("grpc+tcp://127.0.0.1:0") as server:
        connection = to(f"127.0.0.1:{server.port}")
        for call in (lambda: connection.act("ask", QUESTION, 0.2), lambda: list(connection.stream(TICKET, 0.2))):
            with pytest.raises(Away, match="the data buffer of host b-0 did not answer in time") as caught:
                call()
            assert caught.value.timed_out
        go_on.set()


def test_a_peer_that_is_not_in_the_book_yet_is_away(tmp_path: Path, peer: tuple[Side, str]):
    connection = to(str(tmp_path / "peers.json"))
    with pytest.raises(Away, match="the data buffer of host b-0 is not in the address book yet"):
        connection.act("ask", QUESTION, 5.0)
    write_book(tmp_path / "peers.json", {"b": [peer[1]]})
    assert connection.act("ask", QUESTION, 5.0) == encode({})


def test_another_process_than_the_expected_one_is_refused_at_both_ends(peer: tuple[Side, str]):
    connection = to(peer[1])
    connection.expect("theirs")
    connection.expect("theirs")
    assert connection.act("ask", QUESTION, 5.0) == encode({})
    with pytest.raises(Refused, match="the data buffer of host b-0 has restarted, and the rows it held are lost"):
        connection.expect("another")
    connection = to(peer[1])
    connection.expect("another")
    for call in (lambda: connection.act("ask", QUESTION, 5.0), lambda: list(connection.stream(TICKET, 5.0))):
        with pytest.raises(Refused, match="host b-0 refused the call: it has restarted, and the rows it held are lost"):
            call()


class CountingBook(AddressBook):
    """How often a connection was made."""

    num_found = 0

    def find(self, host: Host) -> str | None:
        self.num_found += 1
        return super().find(host)


def test_a_name_is_looked_up_anew_when_a_peer_does_not_answer_for_a_while(peer: tuple[Side, str]):
    clock, book = Clock(), CountingBook(peer[1], "testing")
    connection = Connection(PEER, book, identity(HERE), "ours", clock)

    def asked() -> int:
        connection.act("ask", QUESTION, 5.0)
        return book.num_found

    connection.renew()
    assert (asked(), asked()) == (1, 1)
    clock.now += 1.9
    connection.renew()
    assert asked() == 1
    clock.now += 0.1
    reading = connection.stream(TICKET, 5.0)
    assert next(reading) == BATCH
    connection.renew()
    assert (asked(), asked()) == (2, 2)
    # what was under way goes on
    assert next(reading) == BATCH
    clock.now += 1.0
    connection.renew()
    assert asked() == 2
    connection.close()
    assert (asked(), asked()) == (3, 3)
    connection.close()
