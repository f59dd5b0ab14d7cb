"""Streams over real sockets: what is no ticket of ours is refused, bounded and named; who hangs stops nobody."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker import frames
from rljob_worker.databuffer.links.credentials import Credentials
from rljob_worker.databuffer.links.faults import MAX_WORDS_BYTES, cause_of
from rljob_worker.databuffer.links.fencing import Fence, Side, headers_of, introduction_of
from rljob_worker.databuffer.links.tests.pair import PORTION, READ, groups, identity
from rljob_worker.databuffer.links.tests.test_tls import DAY, Attempt
from rljob_worker.databuffer.protocol.codec import encode, read_admission, read_stream_answer
from rljob_worker.databuffer.protocol.errors import Bug, Malformed
from rljob_worker.databuffer.protocol.peer_side import ChunkTicket, RowsTicket, Ticket
from rljob_worker.databuffer.protocol.streams import MAX_PLACES, Coming, Held, Over
from rljob_worker.databuffer.protocol.worker_side import Done, Failed, TurnedAway
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.server import talks
from rljob_worker.databuffer.server.streams import MAX_FRAME_BYTES, NUM_THREADS, StreamServer
from rljob_worker.databuffer.server.tests.damage import damaged
from rljob_worker.errors import BadData, DeadlineExceeded

HERE, PEER = Host("b", 0), Host("a", 0)
LIFE = "the-life-of-here"
AS_PEER = introduction_of(headers_of(identity(PEER), HERE, "life", None))
TICKET = encode(RowsTicket("a->b", 1, 2, 1 << 20))
MANY = encode(ChunkTicket("many", 1, 0, 0))
LARGE = encode(ChunkTicket("large", 1, 0, 0))
LARGE_BYTES = 16 << 20
"""More than sockets hold on their way."""
ZEROS = bytes(LARGE_BYTES)
MANY_BYTES = (bytes(range(256)) * 16)[: MAX_PLACES + 10]
"""From a place each."""


def gives(ticket: Ticket) -> Iterator[Held]:
    if ticket.edge == "large":
        yield Held(b"large", [memoryview(ZEROS)])
    elif ticket.edge == "many":
        data = memoryview(MANY_BYTES)
        yield Held(b"many", [data[first : first + 1] for first in range(len(data))])
        yield Held(b"none", [])
    elif ticket.edge == "damaged":
        yield PORTION
        raise BadData("damaged")
    elif ticket.edge == "odd":
        raise KeyError("x")
    elif ticket.edge == "long words":
        raise DeadlineExceeded("x" * 100_000)
    else:
        yield PORTION


@contextlib.contextmanager
def serving(credentials: Credentials | None = None) -> Iterator[StreamServer]:
    server = StreamServer("127.0.0.1", Fence(identity(HERE), LIFE, Side.PEERS, groups()), gives, credentials)
    try:
        yield server
    finally:
        server.shutdown()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as server:
        yield server.port


@contextlib.contextmanager
def introduced(port: int, introduction: bytes = AS_PEER) -> Iterator[socket.socket]:
    """A connection on which this was said, whatever was answered."""
    with socket.create_connection(("127.0.0.1", port), 30.0) as channel:
        frames.send(channel, introduction)
        yield channel


@contextlib.contextmanager
def let_in(port: int) -> Iterator[socket.socket]:
    with introduced(port) as channel:
        assert read_admission(frames.receive(channel, 1000)) == Done()
        yield channel


def told(channel: socket.socket) -> list[Any]:
    """What is answered to one ticket: heads with their bytes, and how it ends."""
    found: list[Any] = []
    while True:
        answer = read_stream_answer(frames.receive(channel, 1 << 20))
        if not isinstance(answer, Coming):
            return [*found, answer]
        found.append((answer.head, frames.exactly(channel, answer.num_bytes)))


def asked(channel: socket.socket, ticket: bytes) -> list[Any]:
    frames.send(channel, ticket)
    return told(channel)


def has_ended(channel: socket.socket) -> bool:
    try:
        return channel.recv(1) == b""
    except ConnectionResetError:  # there was something that it had not read
        return True


def test_tickets_are_answered_one_after_the_other(port: int):
    with let_in(port) as channel:
        assert asked(channel, TICKET) == [READ, Over()]
        frames.send(channel, TICKET)
        frames.send(channel, MANY)  # before the first is answered
        assert told(channel) == [READ, Over()]
        assert told(channel) == [(b"many", MANY_BYTES), (b"none", b""), Over()]


@pytest.mark.parametrize(
    ("edge", "before", "kind", "words"),
    [
        ("damaged", [READ], BadData, "damaged"),
        ("odd", [], Bug, "a stream: KeyError('x')"),
        ("long words", [], DeadlineExceeded, "x" * MAX_WORDS_BYTES + " ..."),
    ],
)
def test_what_a_stream_raises_is_told_by_name_and_the_next_ticket_is_answered(
    port: int, edge: str, before: list[Any], kind: type, words: str
):
    with let_in(port) as channel:
        *found, failed = asked(channel, encode(ChunkTicket(edge, 1, 0, 0)))
        assert found == before and isinstance(failed, Failed)
        error = cause_of(failed)
        assert type(error) is kind and str(error) == words
        assert asked(channel, TICKET) == [READ, Over()]


@pytest.mark.parametrize("ticket", [b"", b"{}", AS_PEER, bytes(MAX_FRAME_BYTES)])
def test_what_is_no_ticket_is_refused_by_name(port: int, ticket: bytes):
    with let_in(port) as channel:
        (failed,) = asked(channel, ticket)
        error = cause_of(failed)
        assert type(error) is Malformed and f"{len(ticket):,} bytes are no ticket" in str(error)
        assert asked(channel, TICKET) == [READ, Over()]


def test_a_ticket_that_is_too_long_is_not_read(port: int):
    with let_in(port) as channel:
        (failed,) = asked(channel, bytes(MAX_FRAME_BYTES + 1))
        error = cause_of(failed)
        assert type(error) is Malformed and str(error) == "a ticket of 65,537 bytes, at most 65,536 are read"
        assert has_ended(channel)


@given(st.data())
def test_whatever_the_bytes_the_next_ticket_is_answered(port: int, data: Any):
    with let_in(port) as channel:
        *_, last = asked(channel, data.draw(st.one_of(st.binary(max_size=200), damaged(TICKET))))
        assert isinstance(last, (Over, Failed))
        assert asked(channel, TICKET) == [READ, Over()]


@pytest.mark.parametrize(
    ("lies", "words"),
    [
        ({"token": "guessed"}, "a-0 does not have the token of this job"),
        ({"attempt": 0}, "a-0 is of attempt 0, this data buffer serves attempt 1"),
        ({"plan_hash": "e" * 64}, "a-0 runs plan eeeeeeeeeeee, this data buffer serves plan ffffffffffff"),
        ({"host": 200}, "the plan has no host a-200"),
        ({"rank": 0}, "rank 0 of group a speaks to the side for other data buffers"),
    ],
)
def test_a_stranger_gets_nothing(port: int, lies: dict[str, Any], words: str):
    with introduced(port, introduction_of(headers_of(identity(PEER, **lies), HERE, "life", None))) as channel:
        frames.send(channel, TICKET)
        assert read_admission(frames.receive(channel, 1000)) == TurnedAway(reason=words)
        assert has_ended(channel)


def test_who_means_another_process_is_told_that_this_one_is_new(port: int):
    with introduced(port, introduction_of(headers_of(identity(PEER), HERE, "life", "another"))) as channel:
        reason = "it has restarted, and the rows it held are lost"
        assert read_admission(frames.receive(channel, 1000)) == TurnedAway(reason=reason)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(10_000), b"\xff" * 100, b"\0\0\0\4abcd"])
def test_a_connection_that_speaks_something_else_disturbs_nobody(port: int, garbage: bytes):
    with socket.create_connection(("127.0.0.1", port), 30.0) as stranger, let_in(port) as channel:
        stranger.sendall(garbage)
        assert asked(channel, TICKET) == [READ, Over()]


def test_who_does_not_say_who_he_is_does_not_stay(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(talks, "STRANGER_SECONDS", 0.1)
    with serving() as server, let_in(server.port) as known:
        with socket.create_connection(("127.0.0.1", server.port), 30.0) as silent:
            assert has_ended(silent)
        assert asked(known, TICKET) == [READ, Over()]


def test_callers_that_hang_in_the_middle_stop_nobody():
    """More of them than the server has threads: what they do not read waits in no thread."""
    with serving() as server, contextlib.ExitStack() as hung, let_in(server.port) as channel:
        hanging = [hung.enter_context(let_in(server.port)) for _ in range(4 * NUM_THREADS)]
        for each in hanging:
            frames.send(each, LARGE)
        assert [asked(channel, TICKET) for _ in range(3)] == [[READ, Over()]] * 3
        # who goes on reading gets the rest
        assert told(hanging[0]) == [(b"large", ZEROS), Over()]


def test_many_are_served_at_once(port: int):
    def served(number: int) -> list[Any]:
        with let_in(port) as channel:
            return [asked(channel, LARGE if number % 16 == 0 else TICKET) for _ in range(2)]

    with ThreadPoolExecutor(32) as pool:
        for number, answers in enumerate(pool.map(served, range(64))):
            expected = (b"large", ZEROS) if number % 16 == 0 else READ
            assert answers == [[expected, Over()]] * 2


def test_the_end_of_a_server_is_that_of_its_connections():
    with serving() as server, let_in(server.port) as idle, let_in(server.port) as reading:
        frames.send(reading, LARGE)
        assert isinstance(read_stream_answer(frames.receive(reading, 1000)), Coming)
        server.shutdown()
        server.shutdown()
        assert has_ended(idle)
        with pytest.raises((EOFError, ConnectionResetError)):
            frames.exactly(reading, LARGE_BYTES)


def test_all_addresses_are_those_of_both_families():
    server = StreamServer("0.0.0.0", Fence(identity(HERE), LIFE, Side.PEERS, groups()), gives)
    try:
        with let_in(server.port) as channel:
            assert asked(channel, TICKET) == [READ, Over()]
        if socket.has_dualstack_ipv6():
            with socket.create_connection(("::1", server.port), 30.0) as channel:
                frames.send(channel, AS_PEER)
                assert read_admission(frames.receive(channel, 1000)) == Done()
    finally:
        server.shutdown()


# ---- certificates


@contextlib.contextmanager
def shaken(port: int, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", port), 30.0) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as channel,
    ):
        yield channel


def introduced_as(channel: socket.socket, host: Host) -> Any:
    frames.send(channel, introduction_of(headers_of(identity(host), HERE, "life", None)))
    return read_admission(frames.receive(channel, 1000))


def test_those_of_one_attempt_exchange_bytes(tmp_path: Path):
    ours = Attempt(tmp_path)
    with serving(ours.of("b-0")) as server, shaken(server.port, ours.of("a-0").client_context()) as channel:
        assert channel.version() == "TLSv1.3"
        assert introduced_as(channel, PEER) == Done()
        assert asked(channel, TICKET) == [READ, Over()]
        assert asked(channel, LARGE) == [(b"large", ZEROS), Over()]


def test_a_host_does_not_pass_for_another_of_its_attempt(tmp_path: Path):
    ours = Attempt(tmp_path)
    with serving(ours.of("b-0")) as server, shaken(server.port, ours.of("a-0").client_context()) as channel:
        assert introduced_as(channel, Host("a", 1)) == TurnedAway(reason="host a-1 shows the certificate of a-0")


@pytest.mark.parametrize("whose", ["nobody's", "a wrong job's"])
def test_who_shows_no_certificate_of_this_attempt_gets_nothing(tmp_path: Path, whose: str):
    ours, theirs = Attempt(tmp_path), Attempt(tmp_path, "theirs")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=ours.of("a-0").authority.decode())
    if whose == "a wrong job's":
        context = theirs.of("a-0", authority_of=ours).client_context()
    refused = pytest.raises((ssl.SSLError, ConnectionError, EOFError))
    with serving(ours.of("b-0")) as server, refused, shaken(server.port, context) as channel:
        introduced_as(channel, PEER)


def test_an_expired_certificate_is_not_taken(tmp_path: Path):
    old = Attempt(tmp_path, ago=40 * DAY)
    refused = pytest.raises(ssl.SSLCertVerificationError, match="has expired")
    with serving(old.of("b-0")) as server, refused, shaken(server.port, old.of("a-0").client_context()):
        pass


def test_plain_text_gets_nothing_behind_tls(tmp_path: Path):
    gone = contextlib.suppress(ConnectionError)
    with serving(Attempt(tmp_path).of("b-0")) as server, introduced(server.port) as channel, gone:
        assert not channel.recv(7).startswith(frames.length_of(encode(Done())))
