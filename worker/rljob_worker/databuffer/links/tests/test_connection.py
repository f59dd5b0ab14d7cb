"""The way to one peer, over real sockets."""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.databuffer.links import connection as connections
from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.links.connection import (
    MAX_BYTES,
    OPTIONS,
    STREAM_OPTIONS,
    PeerConnection,
)
from rljob_worker.databuffer.links.tests.pair import (
    CHECKSUM,
    READ,
    RECORD,
    groups,
    identity,
    record_stream,
    streamed,
    write_book,
)
from rljob_worker.databuffer.protocol.codec import encode, sealed
from rljob_worker.databuffer.protocol.errors import Away, Damaged, Refused
from rljob_worker.databuffer.protocol.peer_side import ChunkTicket, Envelope, RecordStream, WhatDoTheyDo
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.server.flight import PeerServer
from rljob_worker.errors import BadData, PeerLost

HERE, PEER = Host("a", 0), Host("b", 0)
QUESTION = encode(WhatDoTheyDo())
TICKET = encode(ChunkTicket("weights", 1, 0, 0))


class Side:
    """A peer whose stream ends badly on request."""

    def __init__(self) -> None:
        self.fails: list[Exception] = []
        self.lives: list[str] = []
        self.batches = 2
        self.ended: Callable[[], None] = lambda: None

    def take(self, sender: Host, life: str, envelope: Envelope) -> str:
        self.lives.append(life)
        return "theirs"

    def answer(self, question: object) -> dict[str, Any]:
        return {}

    def stream(self, ticket: object) -> RecordStream:
        stream = record_stream(*self.fails, times=self.batches)

        def records() -> Iterator[tuple[pa.RecordBatch, bytes]]:
            try:
                yield from stream.records
            finally:
                self.ended()

        return RecordStream(stream.schema, records())


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def peer() -> Iterator[tuple[Side, str]]:
    side = Side()
    with PeerServer("127.0.0.1:0", identity(PEER), "theirs", groups(), side) as server:
        yield side, f"127.0.0.1:{server.port}"


def to(address: str, clock: Clock | None = None) -> PeerConnection:
    return PeerConnection(PEER, AddressBook(address, "testing"), identity(HERE), "ours", clock or Clock())


def test_what_is_asked_of_grpc():
    assert MAX_BYTES == 268_435_456
    assert dict(OPTIONS) == {
        "grpc.enable_http_proxy": 0,
        "grpc.http2.bdp_probe": 0,
        "grpc.http2.lookahead_bytes": 2_097_152,
        "grpc.initial_reconnect_backoff_ms": 50,
        "grpc.max_reconnect_backoff_ms": 500,
        "grpc.min_reconnect_backoff_ms": 5000,
    }
    assert dict(STREAM_OPTIONS) == {
        **dict(OPTIONS),
        "grpc.use_local_subchannel_pool": 1,
        "grpc.http2.max_frame_size": 1_048_576,
        "grpc.client_idle_timeout_ms": 30_000,
    }


def test_a_proxy_of_the_environment_is_not_between_peers(monkeypatch: pytest.MonkeyPatch, peer: tuple[Side, str]):
    """Nobody listens at its port, and gRPC takes it for loopback too."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    connection = to(peer[1])
    assert connection.act("ask", QUESTION, 5.0) == encode({})
    connection.close()


def test_an_answer_in_two_parts_is_one():
    class TwoParts(flight.FlightServerBase):  # type: ignore[misc]
        def do_action(self, context: object, action: object) -> list[bytes]:
            answer = sealed(b"theirs")
            return [answer[:9], answer[9:]]

    with TwoParts("grpc+tcp://127.0.0.1:0") as server:
        assert to(f"127.0.0.1:{server.port}").act("deliver", b"", 5.0) == b"theirs"


def test_an_answer_that_was_damaged_is_none():
    class Damages(flight.FlightServerBase):  # type: ignore[misc]
        def do_action(self, context: object, action: object) -> list[bytes]:
            return [sealed(b"theirs")[:-1] + b"z"]

    with Damages("grpc+tcp://127.0.0.1:0") as server:
        words = "^the data buffer of host b-0: an answer of 6 bytes was damaged on the way$"
        with pytest.raises(Damaged, match=words):
            to(f"127.0.0.1:{server.port}").act("deliver", b"", 5.0)


def test_a_peer_is_told_our_life_and_answers(peer: tuple[Side, str]):
    side, address = peer
    connection = to(address)
    assert connection.act("deliver", encode(Envelope(0, ())), 5.0) == b"theirs" and side.lives == ["ours"]
    assert connection.act("ask", QUESTION, 5.0) == encode({})
    assert streamed(connection, TICKET) == [READ, READ]
    connection.close()


def test_errors_name_the_peer_or_are_its_own(peer: tuple[Side, str]):
    side, address = peer
    side.fails = [BadData("chunk 3 is damaged")]
    connection, came = to(address), []
    with pytest.raises(BadData, match="^chunk 3 is damaged$"):
        connection.stream(TICKET, 5.0, lambda record, checksum: came.append(checksum))
    assert came == [CHECKSUM] * 2
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

    with Hangs("grpc+tcp://127.0.0.1:0") as server:
        connection = to(f"127.0.0.1:{server.port}")
        try:
            with pytest.raises(Away, match="the data buffer of host b-0 did not answer in time") as caught:
                connection.act("ask", QUESTION, 0.2)
            assert caught.value.timed_out
        finally:
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
    for call in (lambda: connection.act("ask", QUESTION, 5.0), lambda: streamed(connection, TICKET)):
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
    connection = PeerConnection(PEER, book, identity(HERE), "ours", clock)

    def asked() -> int:
        connection.act("ask", QUESTION, 5.0)
        return book.num_found

    connection.renew()
    assert (asked(), asked()) == (1, 1)
    clock.now += 1.9
    connection.renew()
    assert asked() == 1
    clock.now += 0.1
    connection.renew()
    assert (asked(), asked()) == (2, 2)
    clock.now += 1.0
    connection.renew()
    assert asked() == 2
    connection.close()
    assert (asked(), asked()) == (3, 3)
    connection.close()


def test_streams_have_a_connection_of_their_own_that_is_kept_and_made_anew(peer: tuple[Side, str]):
    clock, book = Clock(), CountingBook(peer[1], "testing")
    connection = PeerConnection(PEER, book, identity(HERE), "ours", clock)

    def lookups() -> int:
        assert streamed(connection, TICKET) == [READ, READ]
        return book.num_found

    assert [lookups() for _ in range(3)] == [1, 1, 1]
    connection.act("ask", QUESTION, 5.0)
    assert lookups() == 2
    clock.now += 2.0
    connection.renew()
    assert lookups() == 3
    connection.close()
    assert lookups() == 4
    connection.close()


def test_a_stream_that_is_not_read_to_its_end_is_cancelled_and_the_next_is_whole(peer: tuple[Side, str]):
    side, address = peer
    ended = threading.Event()
    side.batches = 10_000  # more than is on its way
    side.ended = ended.set

    def refuse(record: pa.RecordBatch, checksum: bytes) -> None:
        raise BadData("no place for it")

    connection = to(address)
    with pytest.raises(BadData, match="^no place for it$"):
        connection.stream(TICKET, TEST_TIMEOUT_SECONDS, refuse)
    assert ended.wait(TEST_TIMEOUT_SECONDS)
    side.batches = 2
    assert streamed(connection, TICKET) == [READ, READ]
    connection.close()


def test_several_streams_of_one_peer_are_read_at_once(peer: tuple[Side, str]):
    connection, outer, inner = to(peer[1]), [], []

    def take(record: pa.RecordBatch, checksum: bytes) -> None:
        inner.append(streamed(connection, TICKET))  # while the other one waits
        outer.append((record.column(0).to_pylist(), checksum))

    connection.stream(TICKET, TEST_TIMEOUT_SECONDS, take)
    assert outer == [READ, READ] and inner == [[READ, READ]] * 2
    connection.close()


@pytest.mark.parametrize(("at_once", "num_connections"), [(1, 1), (3, 3), (4, 3)])
def test_streams_at_the_same_time_have_connections_of_their_own(
    monkeypatch: pytest.MonkeyPatch, at_once: int, num_connections: int
):
    monkeypatch.setattr(connections, "STREAM_CONNECTIONS", 3)
    peers: list[str] = []

    class Notes(flight.FlightServerBase):  # type: ignore[misc]
        def do_get(self, context: flight.ServerCallContext, ticket: object) -> flight.GeneratorStream:
            peers.append(context.peer())
            return flight.GeneratorStream(RECORD.schema, iter([RECORD]))

    with Notes("grpc+tcp://127.0.0.1:0") as server:
        connection = to(f"127.0.0.1:{server.port}")

        def stream(deeper: int) -> None:
            def take(record: pa.RecordBatch, checksum: bytes) -> None:
                if deeper:
                    stream(deeper - 1)  # while this one waits

            connection.stream(TICKET, TEST_TIMEOUT_SECONDS, take)

        stream(at_once - 1)
        assert len(peers) == at_once and len(set(peers)) == num_connections
        before = set(peers)
        for _ in range(3):
            stream(0)  # one after the other, over a connection that is there
        assert set(peers) == before and len(set(peers[at_once:])) == 1
        connection.close()


@pytest.mark.parametrize("num_batches", [0, 3])
def test_a_stream_ends_with_its_time(num_batches: int):
    """A peer that says nothing, and one that stops in the middle."""
    over = threading.Event()

    class Stops(flight.FlightServerBase):  # type: ignore[misc]
        def do_get(self, context: object, ticket: object) -> flight.GeneratorStream:
            def batches() -> Iterator[pa.RecordBatch]:
                yield from [RECORD] * num_batches
                over.wait()

            return flight.GeneratorStream(RECORD.schema, batches())

    with Stops("grpc+tcp://127.0.0.1:0") as server:
        connection = to(f"127.0.0.1:{server.port}")
        try:
            with pytest.raises(Away, match="host b-0 did not answer in time: ") as caught:
                streamed(connection, TICKET, 0.3)
            assert caught.value.timed_out
        finally:
            over.set()


def test_a_schema_that_is_none_is_a_lost_peer():
    class Lies(flight.FlightServerBase):  # type: ignore[misc]
        def do_get(self, context: object, ticket: object) -> flight.GeneratorStream:
            other = pa.RecordBatch.from_pydict({"x": [1.5]})
            return flight.GeneratorStream(RECORD.schema, iter([other]))

    with Lies("grpc+tcp://127.0.0.1:0") as server, pytest.raises(PeerLost, match="the data buffer of host b-0 "):
        streamed(to(f"127.0.0.1:{server.port}"), TICKET)
