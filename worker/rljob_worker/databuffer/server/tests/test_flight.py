"""The server for peers over real sockets: what is not our call is refused, bounded and named, and the next call is
served."""

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.databuffer.links.faults import MAX_WORDS_BYTES, errors_of
from rljob_worker.databuffer.links.fencing import Headers, headers_of
from rljob_worker.databuffer.links.tests.pair import groups, identity
from rljob_worker.databuffer.protocol.codec import encode, opened, sealed
from rljob_worker.databuffer.protocol.errors import Bug, Damaged, Elsewhere, Malformed, Refused
from rljob_worker.databuffer.protocol.peer_side import (
    Down,
    Envelope,
    PeerAnswer,
    Question,
    RecordStream,
    RowsTaken,
    Ticket,
    WhatDoTheyDo,
    WhatIsMissing,
)
from rljob_worker.databuffer.protocol.worker_calls import SetStatus
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.server.flight import PeerServer
from rljob_worker.databuffer.server.tests.damage import damaged
from rljob_worker.errors import BadData, DeadlineExceeded, PeerLost, RLJobError

HERE, PEER = Host("a", 0), Host("b", 0)
LIFE = "the-life-of-here"
AS_PEER = headers_of(identity(PEER), HERE, "life", None)
AS_WORKER = headers_of(identity(HERE, rank=1), HERE, "life", None)
ENVELOPE = encode(Envelope(0, (RowsTaken("a->b", 1, (1, 2)), Down("verdict", 2, b"words"))))
QUESTION = encode(WhatIsMissing("a->b", 1))
REQUEST = encode(SetStatus(status={"step": 1}))


@dataclass
class Here:
    """What answers peers, and notes who asked."""

    taken: list[tuple[Host, str, Envelope]] = field(default_factory=list)
    fails: Exception | None = None

    def take(self, sender: Host, life: str, envelope: Envelope) -> str:
        self.taken.append((sender, life, envelope))
        return LIFE

    def answer(self, question: Question) -> PeerAnswer:
        if self.fails is not None:
            raise self.fails
        return {"0": type(question).__name__}

    def stream(self, ticket: Ticket) -> RecordStream:
        raise AssertionError("nobody asks")


@pytest.fixture(scope="module")
def peers() -> Iterator[tuple[Here, str]]:
    here = Here()
    with PeerServer("127.0.0.1:0", identity(HERE), LIFE, groups(), here) as server:
        yield here, f"grpc+tcp://127.0.0.1:{server.port}"


@contextlib.contextmanager
def calling(location: str) -> Iterator[Callable[..., Any]]:
    """Calls of an action by name, with its body."""
    with flight.FlightClient(location) as client:

        def call(name: str, body: bytes, headers: Headers = AS_PEER, *, seal: bool = True) -> Any:
            options = flight.FlightCallOptions(timeout=TEST_TIMEOUT_SECONDS, headers=headers)
            with errors_of("it"):
                answers = client.do_action((name, sealed(body) if seal else body), options)
                return bytes(opened(b"".join(answer.body.to_pybytes() for answer in answers), "an answer"))

        yield call


def shown(headers: Headers, **lies: Sequence[bytes]) -> Headers:
    """Headers with those of these names replaced."""
    names = {f"x-rljob-{name}".encode(): values for name, values in lies.items()}
    kept = [(name, value) for name, value in headers if name not in names]
    return kept + [(name, value) for name, values in names.items() for value in values]


def refused(
    call: Callable[..., Any], name: str, body: bytes, headers: Headers = AS_PEER, *, seal: bool = True
) -> RLJobError:
    with pytest.raises(RLJobError) as caught:
        call(name, body, headers, seal=seal)
    assert len(str(caught.value)) < 500
    return caught.value


def test_peers_are_served(peers: tuple[Here, str]):
    here, location = peers
    with calling(location) as call:
        assert call("deliver", ENVELOPE) == LIFE.encode()
        sender, life, envelope = here.taken[-1]
        assert (sender, life) == (PEER, "life") and encode(envelope) == ENVELOPE
        assert call("ask", QUESTION) == encode({"0": "WhatIsMissing"})
        assert call("ask", encode(WhatDoTheyDo())) == encode({"0": "WhatDoTheyDo"})


@pytest.mark.parametrize(
    "name, body, words",
    [
        ("deliver", b"", "0 bytes are not an envelope of messages"),
        ("deliver", ENVELOPE[:-1], "bytes are not an envelope of messages: Input data was truncated"),
        ("deliver", QUESTION, "bytes are not an envelope of messages"),
        ("deliver", b"\x92" * 100_000, "100,000 bytes are not an envelope of messages"),
        # four thousand million messages; as many bytes of a payload; a name that is not text
        (
            "deliver",
            b"\x92\x00\xdd\xff\xff\xff\xff",
            "7 bytes are not an envelope of messages: Input data was truncated",
        ),
        ("deliver", b"\x92\x00\x91\x94\xa2Up\xa1a\x01\xc6\xff\xff\xff\xff", "15 bytes are not an envelope of messages"),
        ("deliver", b"\x92\x00\x91\x91\xa1\xff", "6 bytes are not an envelope of messages: 'utf-8'"),
        ("ask", ENVELOPE, "bytes are not a question"),
        ("ask", b"{}", "2 bytes are not a question"),
        ("call", REQUEST, "there is no action 'call', only deliver, ask"),
        ("x" * 1000, b"", f"there is no action '{'x' * 40}', only deliver, ask"),
    ],
)
def test_what_no_peer_says_is_refused_by_name(peers: tuple[Here, str], name: str, body: bytes, words: str):
    here, location = peers
    num_taken = len(here.taken)
    with calling(location) as call:
        error = refused(call, name, body)
        assert type(error) is Malformed and words in str(error)
        assert len(here.taken) == num_taken
        assert call("deliver", ENVELOPE) == LIFE.encode()


@given(st.data())
def test_whatever_the_bytes_the_next_call_is_served(peers: tuple[Here, str], data: Any):
    name = data.draw(st.sampled_from(["deliver", "ask"]))
    whole = {"deliver": ENVELOPE, "ask": QUESTION}[name]
    body = data.draw(st.one_of(st.binary(max_size=200), damaged(whole)))
    with calling(peers[1]) as call:
        try:
            call(name, body)
        except RLJobError as error:
            assert type(error) is Malformed and len(str(error)) < 500
        assert call(name, whole)


@pytest.mark.parametrize(
    "lies, words",
    [
        ({"token": []}, "a call shows 0 values of x-rljob-token, not one"),
        ({"token": [b""]}, "a call's x-rljob-token is not 1 to 512 visible ASCII characters"),
        ({"attempt": [b"0"]}, "b-0 is of attempt 0, this data buffer serves attempt 1"),
        ({"attempt": [b"one"]}, "a call's x-rljob-attempt is one, no number of up to 9 digits"),
        ({"host": [b"-1"]}, "the plan has no host b--1"),
        ({"host": [b"200"]}, "the plan has no host b-200"),
        ({"host": [b"1" * 600]}, "a call's x-rljob-host is not 1 to 512 visible ASCII characters"),
        ({"group": [b"c"]}, "the plan has no host c-0"),
        ({"group": [b"a"]}, "a second data buffer of host a-0"),
        ({"rank": [b"0"]}, "rank 0 of group b speaks to the side for other data buffers"),
        ({"rank": [b"0", b"1"]}, "a call shows 2 values of x-rljob-rank, not one"),
        ({"life": []}, "a call shows 0 values of x-rljob-life, not one"),
        ({"expects": [b"x y"]}, "a call's x-rljob-expects is not 1 to 512 visible ASCII characters"),
        ({"expects": [b"another"]}, "it has restarted, and the rows it held are lost"),
    ],
)
def test_a_stranger_reaches_no_handler(peers: tuple[Here, str], lies: dict[str, list[bytes]], words: str):
    here, location = peers
    num_taken = len(here.taken)
    with calling(location) as call:
        for name, body in (("deliver", ENVELOPE), ("ask", QUESTION), ("nothing", b"")):
            error = refused(call, name, body, shown(AS_PEER, **lies))
            assert type(error) is Refused and str(error) == f"it refused the call: {words}"
        assert len(here.taken) == num_taken
        assert call("deliver", ENVELOPE, shown(AS_PEER, expects=[LIFE.encode()])) == LIFE.encode()


@pytest.mark.parametrize(
    "lies, words",
    [
        ({"token": [b"guessed"]}, "b-0 does not have the token of this job"),
        ({"attempt": [b"2"]}, "b-0 is of attempt 2, this data buffer serves attempt 1"),
        ({"to": [b"a-1"]}, "this is the data buffer of host a-0"),
    ],
)
def test_a_caller_with_a_stale_address_reaches_no_handler(
    peers: tuple[Here, str], lies: dict[str, list[bytes]], words: str
):
    here, location = peers
    num_taken = len(here.taken)
    with calling(location) as call:
        error = refused(call, "deliver", ENVELOPE, shown(AS_PEER, **lies))
        assert type(error) is Elsewhere and str(error) == f"it refused the call: {words}"
        assert len(here.taken) == num_taken


@given(st.data())
def test_a_damaged_call_reaches_no_handler(peers: tuple[Here, str], data: Any):
    here, location = peers
    name, body = data.draw(st.sampled_from([("deliver", ENVELOPE), ("ask", QUESTION)]))
    num_taken, sent = len(here.taken), sealed(body)
    with calling(location) as call:
        error = refused(call, name, data.draw(damaged(sent).filter(lambda bad: bad != sent)), seal=False)
    assert type(error) is Damaged and "was damaged on the way" in str(error) and len(here.taken) == num_taken


def test_a_worker_is_not_served(peers: tuple[Here, str]):
    with calling(peers[1]) as call:
        error = refused(call, "deliver", ENVELOPE, AS_WORKER)
        assert type(error) is Refused and "rank 1 of group a speaks to the side for other data buffers" in str(error)


NAMES = ["token", "attempt", "plan", "group", "host", "rank", "life", "expects"]
VALUES = st.one_of(st.binary(max_size=20), st.integers(-(10**12), 10**12).map(lambda n: str(n).encode()))


@given(st.dictionaries(st.sampled_from(NAMES), st.lists(VALUES, max_size=2), min_size=1))
def test_whatever_the_headers_a_liar_reaches_no_handler(peers: tuple[Here, str], lies: dict[str, list[bytes]]):
    here, location = peers
    num_taken = len(here.taken)
    with calling(location) as call:
        try:
            call("deliver", ENVELOPE, shown(AS_PEER, **lies))
        except PeerLost as error:
            assert len(str(error)) < 500 and len(here.taken) == num_taken
        else:
            sender, _, _ = here.taken[-1]
            assert sender.group in "ab" and 0 <= sender.index < 200 and sender != HERE
        assert call("deliver", ENVELOPE) == LIFE.encode()


def test_a_body_that_is_too_big_is_refused_before_it_is_read():
    here = Here()
    limits = {"max_bytes": len(sealed(ENVELOPE))}
    with (
        PeerServer("127.0.0.1:0", identity(HERE), LIFE, groups(), here, **limits) as server,
        calling(f"grpc+tcp://127.0.0.1:{server.port}") as call,
    ):
        error = refused(call, "deliver", bytes(len(ENVELOPE) + 1))
        sizes = (len(sealed(ENVELOPE)) + 1, len(sealed(ENVELOPE)))
        assert type(error) is Malformed and str(error) == "deliver of {:,} bytes, at most {:,} are read".format(*sizes)
        assert call("deliver", ENVELOPE) == LIFE.encode()


@pytest.mark.parametrize(
    "raised, kind, words",
    [
        (BadData("too wide"), BadData, "too wide"),
        (DeadlineExceeded("x" * 100_000), DeadlineExceeded, "x" * MAX_WORDS_BYTES + " ..."),
        (BadData("\u20ac" * 10_000), BadData, "\u20ac" * (MAX_WORDS_BYTES // 3) + " ..."),
        (BadData("half \ud800"), BadData, "half ?"),
        (KeyError("edge"), Bug, "ask: KeyError('edge')"),
        (AssertionError(), Bug, "ask: AssertionError()"),
    ],
)
def test_what_a_handler_raises_has_the_same_name_here(
    peers: tuple[Here, str], raised: Exception, kind: type, words: str
):
    here, location = peers
    here.fails = raised
    try:
        with calling(location) as call, pytest.raises(kind) as caught:
            call("ask", QUESTION)
        assert str(caught.value) == words
    finally:
        here.fails = None


def test_other_methods_of_flight_are_not_served(peers: tuple[Here, str]):
    nothing = flight.FlightDescriptor.for_path("x")
    record = pa.RecordBatch.from_pydict({"x": [1]})
    for headers, kind in ((shown(AS_PEER, token=[b"guessed"]), Elsewhere), (AS_PEER, PeerLost)):
        options = flight.FlightCallOptions(timeout=TEST_TIMEOUT_SECONDS, headers=headers)
        with flight.FlightClient(peers[1]) as client:

            def put() -> None:
                writer, _ = client.do_put(nothing, record.schema, options)  # noqa: B023
                writer.write_batch(record)
                writer.close()

            for call in (lambda: list(client.list_actions(options)), put):  # noqa: B023
                with pytest.raises(kind) as caught, errors_of("it"):
                    call()
                assert type(caught.value) is kind


GARBAGE = [
    b"",
    b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
    bytes(10_000),
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_connection_that_speaks_something_else_disturbs_nobody(peers: tuple[Here, str], garbage: bytes):
    _, location = peers
    port = int(location.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as stranger, calling(location) as call:
        stranger.sendall(garbage)
        assert call("deliver", ENVELOPE) == LIFE.encode()
