"""Two data buffers with certificates, over real sockets: who is served, and what the other one is told."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.flight as flight
import pytest

from rljob_api.certificates import issue
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.links.connection import PeerConnection
from rljob_worker.databuffer.links.credentials import TlsCredentials
from rljob_worker.databuffer.links.tests.pair import READ, groups, identity, record_stream, streamed
from rljob_worker.databuffer.protocol.codec import encode
from rljob_worker.databuffer.protocol.errors import Away, Elsewhere, Refused
from rljob_worker.databuffer.protocol.peer_side import (
    ChunkTicket,
    Envelope,
    PeerAnswer,
    Question,
    RecordStream,
    Ticket,
    WhatDoTheyDo,
)
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.server.flight import PeerServer
from rljob_worker.errors import PeerLost
from rljob_worker.local.pods.certificates import write_issued

HERE, PEER = Host("a", 0), Host("b", 0)
QUESTION = encode(WhatDoTheyDo())
TICKET = encode(ChunkTicket("weights", 1, 0, 0))
DAY = timedelta(days=1)


class Side:
    """Notes that it was called."""

    def __init__(self) -> None:
        self.num_calls = 0

    def take(self, sender: Host, life: str, envelope: Envelope) -> str:
        raise AssertionError("nobody sends")

    def answer(self, question: Question) -> PeerAnswer:
        self.num_calls += 1
        return {}

    def stream(self, ticket: Ticket) -> RecordStream:
        self.num_calls += 1
        return record_stream(times=2)


class Attempt:
    """Certificates for the hosts a-0 and b-0, issued so long ago; b-0 is called by this address."""

    def __init__(
        self, place: Path, job: str = "ours", ago: timedelta = timedelta(), address: str = "127.0.0.1"
    ) -> None:
        self.place = place / f"{job}-{ago.days}-{address}"
        hosts = {"a-0": ("127.0.0.1",), "b-0": (address,)}
        write_issued(issue(job, 1, hosts, datetime.now(UTC) - ago), self.place)

    def of(self, host: str, authority_of: "Attempt | None" = None) -> TlsCredentials:
        trusted = (authority_of or self).place / host / "ca.crt"
        place = self.place / host
        return TlsCredentials(
            place, trusted.read_bytes(), (place / "tls.crt").read_bytes(), (place / "tls.key").read_bytes()
        )


@contextlib.contextmanager
def peer(credentials: TlsCredentials | None) -> Iterator[tuple[Side, str]]:
    side = Side()
    with PeerServer("127.0.0.1:0", identity(PEER), "theirs", groups(), side, credentials) as server:
        yield side, f"127.0.0.1:{server.port}"


def to(address: str, credentials: TlsCredentials | None, host: Host = HERE) -> PeerConnection:
    book = AddressBook(address, "testing")
    return PeerConnection(PEER, book, identity(host), "ours", credentials=credentials)


def refusals(connection: PeerConnection, kind: type[PeerLost] = Refused) -> list[str]:
    """Refusals of an action and of a stream. kind: Elsewhere if it may be another server than the one that is meant."""
    with pytest.raises(kind) as of_action:
        connection.act("ask", QUESTION, 5.0)
    with pytest.raises(kind) as of_stream:
        streamed(connection, TICKET)
    assert type(of_action.value) is type(of_stream.value) is kind
    return [str(of_action.value), str(of_stream.value)]


def test_those_of_one_attempt_speak(tmp_path: Path):
    ours = Attempt(tmp_path)
    with peer(ours.of("b-0")) as (side, address):
        connection = to(address, ours.of("a-0"))
        assert connection.act("ask", QUESTION, 5.0) == encode({})
        assert streamed(connection, TICKET) == [READ, READ]
        connection.close()
        assert side.num_calls == 2 and ours.of("a-0").disagreement(address, 5.0) is None


def test_the_token_is_asked_for_as_well(tmp_path: Path):
    ours = Attempt(tmp_path)
    with peer(ours.of("b-0")) as (side, address):
        book, guessing = AddressBook(address, "testing"), identity(HERE, token="guessed")
        for said in refusals(PeerConnection(PEER, book, guessing, "ours", credentials=ours.of("a-0")), Elsewhere):
            assert said == "the data buffer of host b-0 refused the call: a-0 does not have the token of this job"
        assert side.num_calls == 0


def test_a_host_cannot_pass_for_another_one(tmp_path: Path):
    ours = Attempt(tmp_path)
    with peer(ours.of("b-0")) as (side, address):
        for said in refusals(to(address, ours.of("a-0"), Host("a", 1))):
            assert said == "the data buffer of host b-0 refused the call: host a-1 shows the certificate of a-0"
        assert side.num_calls == 0


def test_the_certificate_of_a_wrong_job_is_named_by_who_sees_it(tmp_path: Path):
    ours, theirs = Attempt(tmp_path), Attempt(tmp_path, "theirs")
    with peer(theirs.of("b-0")) as (side, address):
        for said in refusals(to(address, ours.of("a-0")), Elsewhere):
            assert said == (
                "the data buffer of host b-0 shows a certificate that was issued by 'rljob theirs attempt 1', and this "
                "attempt has the authority 'rljob ours attempt 1'"
            )
        assert side.num_calls == 0


def test_a_server_does_not_take_the_certificate_of_a_wrong_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """A stranger that trusts us is informed by our silence only; our log says why."""
    ours, theirs = Attempt(tmp_path), Attempt(tmp_path, "theirs")
    with peer(ours.of("b-0")) as (side, address):
        for said in refusals(to(address, theirs.of("a-0", authority_of=ours))):
            assert said == "the data buffer of host b-0 does not take our certificate: its log says why"
        assert side.num_calls == 0
    assert "certificate verify failed" in capfd.readouterr().err


def test_an_expired_certificate_is_named_by_who_sees_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """Both are 40 days old and were good for 30; the client looks first."""
    old = Attempt(tmp_path, ago=40 * DAY)
    with peer(old.of("b-0")) as (side, address):
        for said in refusals(to(address, old.of("a-0"))):
            assert said.startswith("the data buffer of host b-0 shows a certificate that expired at ")
        assert side.num_calls == 0
    assert "certificate has expired" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["b-0.job.team.svc", "127.0.0.2"])
def test_a_server_that_is_not_called_what_its_certificate_says_is_refused(tmp_path: Path, name: str):
    """A process that takes an address of the attempt over has at most the certificate of a host that is called
    otherwise."""
    ours = Attempt(tmp_path, address=name)
    with peer(ours.of("b-0")) as (side, address):
        for said in refusals(to(address, ours.of("a-0")), Elsewhere):
            is_for = f"is for b-0, {name}, and not for 127.0.0.1"
            assert said == f"the data buffer of host b-0 shows a certificate that {is_for}"
        assert side.num_calls == 0


def test_plain_text_meets_nobody_behind_tls(tmp_path: Path):
    with peer(Attempt(tmp_path).of("b-0")) as (side, address):
        with pytest.raises(Away, match="the data buffer of host b-0 does not answer"):
            to(address, None).act("ask", QUESTION, 5.0)
        assert side.num_calls == 0


def test_tls_does_not_fall_back_to_plain_text(tmp_path: Path):
    with peer(None) as (side, address):
        for said in refusals(to(address, Attempt(tmp_path).of("a-0")), Elsewhere):
            assert said.startswith("the data buffer of host b-0 speaks no TLS (")
            assert said.endswith("): is dataBuffer.tls on in its job?")
        assert side.num_calls == 0


def test_who_shows_no_certificate_is_not_served(tmp_path: Path):
    ours = Attempt(tmp_path)
    with peer(ours.of("b-0")) as (side, address):
        nameless = flight.FlightClient(f"grpc+tls://{address}", tls_root_certs=ours.of("a-0").authority)
        with pytest.raises(flight.FlightUnavailableError):
            list(
                nameless.do_action(
                    flight.Action("ask", QUESTION), flight.FlightCallOptions(timeout=TEST_TIMEOUT_SECONDS)
                )
            )
        nameless.close()
        assert side.num_calls == 0


def test_who_is_away_or_too_busy_to_shake_hands_is_no_stranger(tmp_path: Path):
    ours = Attempt(tmp_path)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(Away, match="the data buffer of host b-0 does not answer"):
            to(address, ours.of("a-0")).act("ask", QUESTION, 5.0)
        assert ours.of("a-0").disagreement(address, 5.0) is None
        nobody.listen()  # the system takes the call, and nobody speaks
        assert ours.of("a-0").disagreement(address, 0.1) is None
        with pytest.raises(Away) as caught:
            to(address, ours.of("a-0")).act("ask", QUESTION, 0.2)
        assert caught.value.timed_out


@pytest.mark.parametrize("num_bytes", [0, 10_000])
def test_who_hangs_up_before_it_has_shown_anything_is_no_stranger(tmp_path: Path, num_bytes: int):
    """Its system says that it is gone, or only that nothing follows, when all we said was read."""

    def take(called: socket.socket) -> None:
        called.recv(num_bytes)
        called.close()

    with answering(take) as address:
        assert Attempt(tmp_path).of("a-0").disagreement(address, 5.0) is None


def test_who_takes_our_certificate_and_then_is_slow_to_speak_is_no_stranger(tmp_path: Path):
    ours = Attempt(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ours.place / "b-0" / "tls.crt", ours.place / "b-0" / "tls.key")

    def take(called: socket.socket) -> None:
        with context.wrap_socket(called, server_side=True) as shaken, contextlib.suppress(OSError):
            shaken.recv(1)  # until the caller hangs up

    with answering(take) as address:
        assert ours.of("a-0").disagreement(address, 1.0) is None


def test_who_dies_in_the_middle_of_a_handshake_is_no_stranger(tmp_path: Path):
    """It hangs up as one would that does not take our certificate, and is gone when it is asked again."""
    ours = Attempt(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ours.place / "b-0" / "tls.crt", ours.place / "b-0" / "tls.key")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            called, _ = server.accept()
            server.close()
            context.wrap_socket(called, server_side=True).close()

        thread = threading.Thread(target=take)
        thread.start()
        try:
            assert ours.of("a-0").disagreement(f"127.0.0.1:{server.getsockname()[1]}", 5.0) is None
        finally:
            thread.join()


@contextlib.contextmanager
def answering(take: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of somebody who does this with the first who calls."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: take(server.accept()[0]))
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            thread.join()
