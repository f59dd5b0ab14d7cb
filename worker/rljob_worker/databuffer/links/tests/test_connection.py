"""The way to one peer, over real sockets."""

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

from rljob_worker import frames
from rljob_worker.databuffer.links.book import AddressBook
from rljob_worker.databuffer.links.channel import MAX_ANSWER_BYTES
from rljob_worker.databuffer.links.connection import MAX_BYTES, OPTIONS, Connection
from rljob_worker.databuffer.links.kept import IDLE_SECONDS
from rljob_worker.databuffer.links.tests.pair import PORTION, READ, Reading, groups, identity, streamed, write_book
from rljob_worker.databuffer.protocol.codec import encode, sealed
from rljob_worker.databuffer.protocol.errors import Away, Damaged, Malformed, Refused
from rljob_worker.databuffer.protocol.peer_side import ChunkTicket, Envelope, WhatDoTheyDo
from rljob_worker.databuffer.protocol.streams import Coming, Held, Over, Portion
from rljob_worker.databuffer.protocol.worker_side import Done, Failed, TurnedAway
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

    def stream(self, ticket: object) -> Iterator[Held]:
        yield PORTION
        if self.fails is not None:
            raise self.fails
        yield PORTION


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
        "grpc.enable_http_proxy": 0,
        "grpc.http2.bdp_probe": 0,
        "grpc.http2.lookahead_bytes": 2_097_152,
        "grpc.initial_reconnect_backoff_ms": 50,
        "grpc.max_reconnect_backoff_ms": 500,
        "grpc.min_reconnect_backoff_ms": 5000,
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
    side.fails = BadData("chunk 3 is damaged")
    connection = to(address)
    reading = Reading()
    with pytest.raises(BadData, match="^chunk 3 is damaged$"):
        connection.stream(TICKET, 5.0, reading.take)
    assert reading == [READ]
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
        for call in (lambda: connection.act("ask", QUESTION, 0.2), lambda: streamed(connection, TICKET, 0.2)):
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
    connection.renew()
    assert (asked(), asked()) == (2, 2)
    clock.now += 1.0
    connection.renew()
    assert asked() == 2
    connection.close()
    assert (asked(), asked()) == (3, 3)
    connection.close()


def test_a_connection_for_bytes_is_kept_for_the_next_ticket_and_hung_up_when_idle(peer: tuple[Side, str]):
    clock, book = Clock(), CountingBook(peer[1], "testing")
    connection = Connection(PEER, book, identity(HERE), "ours", clock)

    def lookups() -> int:
        assert streamed(connection, TICKET) == [READ, READ]
        return book.num_found

    # one for the question where bytes are, one for the connection; then the connection is kept
    assert [lookups() for _ in range(3)] == [2, 2, 2]
    clock.now += IDLE_SECONDS
    connection.close_idle()
    assert lookups() == 3
    connection.close()
    # nothing is kept any more
    assert [lookups() for _ in range(2)] == [4, 5]


def test_a_stream_that_is_not_read_to_its_end_does_not_answer_the_next_ticket(peer: tuple[Side, str]):
    def refuse(portion: Portion) -> None:
        raise BadData("no place for it")

    connection = to(peer[1])
    assert streamed(connection, TICKET) == [READ, READ]
    with pytest.raises(BadData, match="^no place for it$"):
        connection.stream(TICKET, 30.0, refuse)
    assert streamed(connection, TICKET) == [READ, READ]
    connection.close()


def test_several_streams_of_one_peer_are_read_at_once(peer: tuple[Side, str]):
    connection, inner = to(peer[1]), []
    outer = Reading()

    def take(portion: Portion) -> None:
        inner.append(streamed(connection, TICKET))  # while the other one waits
        outer.take(portion)

    connection.stream(TICKET, 30.0, take)
    assert outer == [READ, READ] and inner == [[READ, READ]] * 2
    connection.close()


@contextlib.contextmanager
def giving(*said: bytes, ports: Sequence[bytes] = (b"",), then: str = "hangs up") -> Iterator[Connection]:
    """To a peer that tells these ports, one after the other, when it is asked where bytes are (b"": the right one), and
    says there what it likes. Then it hangs up, or hangs, or drips: says one byte after the other."""
    left, over = list(ports), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        class Tells(flight.FlightServerBase):  # type: ignore[misc]
            def do_action(self, context: object, action: object) -> list[bytes]:
                return [sealed(left.pop(0) or str(listener.getsockname()[1]).encode())]

        def speak() -> None:
            with contextlib.suppress(OSError):  # the listener's end, or the caller's
                called, _ = listener.accept()
                with called:
                    called.sendall(b"".join(said))
                    called.recv(1 << 16)
                    if then == "hangs up":
                        called.shutdown(socket.SHUT_WR)
                    while then == "drips" and not over.wait(0.1):
                        called.sendall(b"x")
                    while called.recv(1 << 16):
                        pass

        speaks = threading.Thread(target=speak)
        speaks.start()
        try:
            with Tells("grpc+tcp://127.0.0.1:0") as server:
                connection = to(f"127.0.0.1:{server.port}")
                yield connection
                connection.close()
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            speaks.join()


def frame(said: object) -> bytes:
    body = encode(said)  # type: ignore[arg-type]
    return frames.length_of(body) + body


IN = frame(Done())


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ([], Away, "does not answer: it hung up"),
        ([frame(TurnedAway(reason="no"))], Refused, "refused the call: no"),
        ([IN], Away, "does not answer: it hung up"),
        ([IN, frame(Coming(head=b"x", num_bytes=9)), b"12345678"], Away, "does not answer: it hung up"),
        ([IN, frame(Failed(kind="BadData", words="damaged"))], BadData, "^damaged$"),
        ([IN, (MAX_ANSWER_BYTES + 1).to_bytes(4, "big")], Malformed, "gave an answer of 67,108,865 bytes, at most"),
        ([IN, frame(Done())], Malformed, "bytes are no answer to a ticket"),
    ],
)
def test_whatever_a_peer_says_on_a_connection_for_bytes_is_an_error_by_name(said: list[bytes], kind: type, words: str):
    with giving(*said) as connection, pytest.raises(kind, match=words) as caught:
        streamed(connection, TICKET)
    assert type(caught.value) is kind


@pytest.mark.parametrize("port", [b"x", b"0", b"65536", b"-1"])
def test_what_is_no_port_is_refused_by_name(port: bytes):
    with giving(ports=[port]) as connection, pytest.raises(Malformed, match="is no port$"):
        streamed(connection, TICKET)


def test_who_gives_bytes_no_more_where_it_did_is_asked_again():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        taken = str(nobody.getsockname()[1]).encode()
        with giving(IN, frame(Over()), ports=[taken, b""]) as connection:
            with pytest.raises(Away, match="the data buffer of host b-0 does not answer"):
                streamed(connection, TICKET)
            assert streamed(connection, TICKET) == []


@pytest.mark.parametrize("then", ["hangs", "drips"])
def test_a_stream_ends_with_its_time(then: str):
    with giving(IN, frame(Coming(head=b"x", num_bytes=1 << 20)), then=then) as connection:
        with pytest.raises(Away, match="host b-0 did not answer in time: 1 s") as caught:
            streamed(connection, TICKET, 1.0)
        assert caught.value.timed_out
