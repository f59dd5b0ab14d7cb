"""Data buffers that speak over real sockets."""

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_worker.databuffer.links import connection, peer
from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.links.connection import MAX_BYTES
from rljob_worker.databuffer.links.links import SWEEP_SECONDS
from rljob_worker.databuffer.links.message_calls import (
    BYTES_PER_SECOND,
    CALL_SECONDS,
    HURRIED_SECONDS,
    NUM_SUSPECT_THREADS,
    NUM_THREADS,
)
from rljob_worker.databuffer.links.tests.pair import CHECKSUM, Speaker, record_stream, speaking, write_book
from rljob_worker.databuffer.protocol.codec import sealed
from rljob_worker.databuffer.protocol.errors import Away, Bug, Elsewhere, Malformed, OutOfOrder, Refused
from rljob_worker.databuffer.protocol.peer_side import (
    ChunkTicket,
    Departure,
    Down,
    Envelope,
    PeerMessage,
    RowsTaken,
    WhatDoTheyDo,
)
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.server import flight
from rljob_worker.errors import BadData, InvalidJob, PeerLost, RLJobError
from rljob_worker.tests.waiting import wait_for

A, B = Host("a", 0), Host("b", 0)
TICKET = ChunkTicket("weights", 1, 0, 0)
ANSWER = {"0": {"question": "WhatDoTheyDo"}}


def message(number: int) -> RowsTaken:
    return RowsTaken("a->b", number, (1, 2))


@contextlib.contextmanager
def two(directory: Path, **options: Any) -> Iterator[tuple[Speaker, Speaker]]:
    book = directory / "book.json"
    with speaking(A, book, **options) as a, speaking(B, book, **options) as b:
        write_book(book, {"a": [a.address], "b": [b.address]})
        yield a, b


@contextlib.contextmanager
def closed_port() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


# ---- messages


def test_messages_arrive_in_order_and_the_sender_knows_when(tmp_path: Path):
    with two(tmp_path) as (a, b):
        assert a.links.flush(0.0)
        for number in range(2000):
            a.links.send(B, message(number))
        assert a.links.flush(30.0)
        assert b.heard == [(A, message(number)) for number in range(2000)]
        assert (a.lost, b.lost, a.failed, b.failed) == ([], [], [], [])


def test_messages_that_are_sent_together_leave_together(tmp_path: Path):
    with two(tmp_path) as (a, b):
        a.links.send(B, *map(message, range(400)))
        assert a.links.flush(30.0)
        assert b.messages == [message(number) for number in range(400)] and b.num_taken == 1


def test_messages_of_many_threads_both_ways_are_each_heard_once(tmp_path: Path):
    with two(tmp_path) as (a, b):

        def send(first: int) -> None:
            for number in range(first, first + 200):
                a.links.send(B, message(number))
                b.links.send(A, message(number))

        threads = [threading.Thread(target=send, args=(first,)) for first in range(0, 1000, 200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert a.links.flush(30.0) and b.links.flush(30.0)
        for heard in (a.messages, b.messages):
            steps = [said.step for said in heard if isinstance(said, RowsTaken)]
            assert sorted(steps) == list(range(1000))
            # what one thread sent is heard in its order
            assert all(
                [s for s in steps if s // 200 == part] == list(range(part * 200, part * 200 + 200)) for part in range(5)
            )


def test_a_message_of_eight_mebibytes_arrives_whole(tmp_path: Path):
    with two(tmp_path) as (a, b):
        said = Down("verdict", 3, bytes(range(256)) * (8 << 12))
        a.links.send(B, said)
        assert a.links.flush(30.0) and b.messages == [said]


def test_a_message_that_no_peer_would_read_is_refused_where_it_is_sent(tmp_path: Path):
    with two(tmp_path) as (a, _), pytest.raises(Bug, match="Down to host b-0 has 268,435,.* at most 268,435,456"):
        a.links.send(B, Down("verdict", 3, bytes(MAX_BYTES)))


def test_what_a_handler_raises_is_no_matter_of_the_sender(tmp_path: Path):
    def hears(sender: Host, said: PeerMessage) -> None:
        if said == message(1):
            raise BadData("rows too wide")

    with two(tmp_path) as (a, b):
        b.hears = hears
        for number in range(3):
            a.links.send(B, message(number))
        assert a.links.flush(30.0) and len(b.heard) == 3
        (error,) = b.failed
        assert isinstance(error, BadData)
        assert str(error) == "RowsTaken from host a-0, edge a->b, step 1: rows too wide"
        assert (a.lost, a.failed, b.lost) == ([], [], [])


def test_a_peer_may_start_after_the_first_message(tmp_path: Path):
    book = tmp_path / "book.json"
    with speaking(A, book) as a:
        a.links.send(B, message(0))
        assert not a.links.flush(0.2)
        with speaking(B, book) as b:
            write_book(book, {"a": [a.address], "b": [b.address]})
            assert a.links.flush(30.0) and b.messages == [message(0)] and a.lost == []


def test_a_data_buffer_that_closed_sends_no_more_and_loses_nobody(tmp_path: Path):
    with two(tmp_path) as (a, b):
        a.links.send(B, message(0))
        assert a.links.flush(30.0)
        a.links.close()
        a.links.send(B, message(1))
        assert a.links.flush(0.0) and b.messages == [message(0)] and a.lost == []


def test_nothing_is_told_after_the_end(tmp_path: Path):
    with two(tmp_path) as (a, _):
        assert a.links.take(B, "first", Envelope(0, ())) == a.life
        a.links.close()
        with pytest.raises(Refused, match="host b-0 has restarted"):
            a.links.take(B, "second", Envelope(0, ()))
        assert a.lost == []


def test_what_calls_may_take():
    assert (CALL_SECONDS, HURRIED_SECONDS, BYTES_PER_SECOND, SWEEP_SECONDS) == (5.0, 0.5, 1e7, 0.5)
    assert (NUM_THREADS, NUM_SUSPECT_THREADS) == (64, 16)


# ---- peers that are away


def test_a_peer_that_cannot_be_reached_is_lost_once_by_name(tmp_path: Path):
    book = tmp_path / "book.json"
    with closed_port() as nobody, speaking(A, book) as a:
        write_book(book, {"a": [a.address], "b": [nobody]})
        a.links.send(B, message(0))
        ((host, error),) = wait_for(lambda: list(a.lost))
        assert host == B and type(error) is PeerLost
        assert "the data buffer of host b-0 does not answer" in str(error)
        assert "it has never been heard" in str(error) and "away for 0." in str(error)
        a.links.send(B, message(1))
        a.links.watch([B])
        with pytest.raises(PeerLost, match="host b-0 does not answer.*; away for"):
            a.links.stream(B, TICKET, 1.0, ignore)
        assert a.links.flush(0.0) and len(a.lost) == 1 and a.failed == []


def test_a_peer_that_was_never_heard_has_longer_unless_the_book_lists_the_living(tmp_path: Path):
    with closed_port() as nobody:
        by_name, by_file = nobody.replace("127.0.0.1", "localhost"), tmp_path / "book.json"
        write_book(by_file, {"b": [nobody]})
        timing = {"retry_seconds": 0.0, "start_seconds": 1e6}
        with speaking(A, by_name, **timing) as patient, speaking(A, by_file, **timing) as quick:
            patient.links.send(B, message(0))
            quick.links.send(B, message(0))
            assert wait_for(lambda: quick.lost) and patient.lost == [] and not patient.links.flush(0.0)


def test_a_peer_that_has_called_is_known_although_it_was_never_reached(tmp_path: Path):
    with closed_port() as nobody, speaking(A, nobody, retry_seconds=0.0, start_seconds=1e6) as a:
        a.links.send(B, message(0))
        with speaking(B, a.address) as b:
            b.links.send(A, message(1))
            assert b.links.flush(30.0)
        ((host, error),) = wait_for(lambda: list(a.lost))
        assert host == B and "it was last heard" in str(error)


def test_a_watched_peer_that_ends_is_lost_and_one_that_left_is_not(tmp_path: Path):
    with two(tmp_path) as (a, b):
        a.links.watch([B])
        b.links.watch([A])
        b.links.send(A, Departure())
        assert b.links.flush(30.0)
        a.links.peer_leaves(B)
        a.links.send(B, message(0))
        assert a.links.flush(30.0) and b.messages == [message(0)]
        assert b.server is not None and a.server is not None
        a.server.shutdown()
        ((host, error),) = wait_for(lambda: list(b.lost))
        assert host == A and "it was last heard" in str(error)
        b.server.shutdown()
        a.links.send(B, message(1))
        assert a.links.flush(30.0) and a.lost == []


def test_only_peers_that_are_watched_are_called_while_there_is_nothing_to_say(tmp_path: Path):
    book = tmp_path / "book.json"
    other = Host("b", 1)
    with speaking(A, book) as a, speaking(B, book) as b, speaking(other, book) as c:
        write_book(book, {"a": [a.address], "b": [b.address, c.address]})
        a.links.send(B, message(0))
        a.links.watch([other])
        # at once, and after two seconds of silence
        wait_for(lambda: c.num_taken == 2)
        assert (b.num_taken, a.num_taken, c.heard) == (1, 0, [])


def test_whoever_takes_the_place_of_a_peer_that_left_is_no_matter(tmp_path: Path):
    book = tmp_path / "book.json"
    with speaking(A, book) as a, speaking(B, book) as b:
        write_book(book, {"a": [a.address], "b": [b.address]})
        a.links.send(B, message(0))
        assert a.links.flush(30.0) and b.server is not None
        a.links.peer_leaves(B)
        port = b.server.port
        b.server.shutdown()
        with speaking(B, book, "second", port=port) as another:
            a.links.send(B, message(1))
            assert a.links.flush(30.0) and another.heard == [] and (a.lost, a.failed) == ([], [])


def test_messages_pass_more_hung_peers_than_there_are_threads(tmp_path: Path):
    num_hung = NUM_THREADS + 36
    book = tmp_path / "book.json"
    go_on = threading.Event()
    healthy = Host("b", num_hung)
    of_others = set(threading.enumerate())
    with (
        speaking(A, book, call_seconds=300.0, retry_seconds=300.0) as a,
        speaking(B, book) as hung,
        speaking(healthy, book) as well,
        released(go_on),
    ):
        hung.hears = lambda sender, said: bool(go_on.wait()) and None
        write_book(book, {"a": [a.address], "b": [hung.address] * num_hung + [well.address]})
        a.links.watch([Host("b", index) for index in range(num_hung)])
        for index in range(num_hung):
            a.links.send(Host("b", index), message(index))
        for number in range(3):
            a.links.send(healthy, message(number))
            wait_for(lambda expected=number + 1: len(well.heard) == expected)
        names = [thread.name for thread in threading.enumerate() if thread not in of_others]
        # and one of each of the two others, who have nothing to say
        assert sum(name.startswith("messages_") for name in names) <= NUM_THREADS + 2
        assert sum(name.startswith("messages-to-suspects_") for name in names) <= NUM_SUSPECT_THREADS + 2
        assert (a.lost, a.failed) == ([], [])


@contextlib.contextmanager
def released(go_on: threading.Event) -> Iterator[None]:
    """Lets those that hang go on, also after a failure: a server ends with its last call."""
    try:
        yield
    finally:
        go_on.set()


def test_a_hung_peer_is_lost_after_a_call_that_timed_out_and_its_window(tmp_path: Path):
    go_on = threading.Event()
    with two(tmp_path, call_seconds=0.2, retry_seconds=0.5) as (a, b), released(go_on):
        b.hears = lambda sender, said: bool(go_on.wait()) and None
        a.links.send(B, message(0))
        ((host, error),) = wait_for(lambda: list(a.lost))
        go_on.set()
        assert host == B and "the data buffer of host b-0 did not answer in time" in str(error)
        assert b.messages == [message(0)]


def test_a_call_that_timed_out_and_was_carried_out_is_not_heard_twice(tmp_path: Path):
    go_on = threading.Event()
    with two(tmp_path, call_seconds=0.2, retry_seconds=300.0) as (a, b):
        b.hears = lambda sender, said: bool(go_on.wait()) and None
        a.links.send(B, message(0))
        a.links.send(B, message(1))
        assert not a.links.flush(0.5)
        go_on.set()
        assert a.links.flush(30.0)
        assert b.messages == [message(0), message(1)] and a.lost == []


def test_a_network_that_comes_and_goes_costs_no_message_and_doubles_none(tmp_path: Path):
    with two(tmp_path, call_seconds=0.2, retry_seconds=300.0) as (a, b):
        assert b.server is not None
        port, sent = b.server.port, 0
        for _ in range(4):
            for _ in range(300):
                a.links.send(B, message(sent))
                sent += 1
            wait_for(lambda: len(b.heard) > 0)
            b.server.shutdown()
            for _ in range(10):
                a.links.send(B, message(sent))
                sent += 1
            b.serve(port)
        assert a.links.flush(60.0)
        assert b.messages == [message(number) for number in range(sent)]
        assert (a.lost, a.failed, b.lost, b.failed) == ([], [], [], [])


def test_a_restarted_peer_is_noticed_by_whoever_calls_it_and_by_whoever_it_calls(tmp_path: Path):
    book = tmp_path / "book.json"
    restarted = "the data buffer of host b-0.* has restarted, and the rows it held are lost"
    with speaking(A, book) as a, speaking(B, book) as b:
        write_book(book, {"a": [a.address], "b": [b.address]})
        a.links.send(B, message(0))
        assert a.links.flush(30.0) and b.server is not None
        port = b.server.port
        b.server.shutdown()
        with speaking(B, book, "second", port=port) as again:
            with pytest.raises(Refused, match="it has restarted"):
                a.links.stream(B, TICKET, 5.0, ignore)
            a.links.send(B, message(1))
            ((host, error),) = wait_for(lambda: list(a.lost))
            assert host == B and again.heard == []
            with pytest.raises(Refused, match=restarted):
                raise error
    with speaking(A, book) as a, speaking(B, book) as b:
        write_book(book, {"a": [a.address], "b": [b.address]})
        b.links.send(A, message(0))
        assert b.links.flush(30.0)
        with speaking(B, book, "second") as again:
            again.links.send(A, message(7))
            ((host, error),) = wait_for(lambda: list(again.lost))
            assert host == A and isinstance(error, Refused)
            ((host, error),) = wait_for(lambda: list(a.lost))
            assert host == B and a.messages == [message(0)]
            with pytest.raises(Refused, match=restarted):
                raise error


@pytest.mark.parametrize("cause", [PeerLost("c-0 does not answer"), BadData("row 3")])
def test_a_peer_whose_data_plane_is_broken_is_lost_by_the_cause(tmp_path: Path, cause: RLJobError):
    def breaks(sender: Host, life: str, envelope: Envelope) -> str:
        raise cause

    with two(tmp_path) as (a, b):
        b.take = breaks  # type: ignore[method-assign]
        a.links.watch([B])  # it has nothing to say
        (error,) = wait_for(lambda: [item for _, item in a.lost] + a.failed)
        assert (type(error), str(error)) == (type(cause), str(cause))


def test_a_stream_that_a_broken_data_plane_refuses_fetches_the_cause(tmp_path: Path):
    def refuses(*asked: Any) -> Any:
        raise PeerLost("c-0 does not answer")

    with two(tmp_path) as (a, b):
        b.streams, b.take = refuses, refuses  # type: ignore[method-assign]
        with pytest.raises(PeerLost, match="^c-0 does not answer$"):
            a.links.stream(B, TICKET, 5.0, ignore)
        assert [str(error) for _, error in wait_for(lambda: list(a.lost))] == ["c-0 does not answer"]


def test_a_book_without_the_peer_breaks_by_name_and_is_not_the_peers_fault(tmp_path: Path):
    with two(tmp_path) as (a, b):
        a.links.send(Host("b", 1), message(0))
        (error,) = wait_for(lambda: list(a.failed))
        assert isinstance(error, InvalidJob) and "no address of host b-1: its list for group b has 1 hosts" in str(
            error
        )
        a.links.send(B, message(0))
        assert a.links.flush(30.0) and len(b.heard) == 1 and a.lost == []


# ---- stale addresses


class Names(AddressBook):
    """As names in DNS do, they may lead elsewhere for a while."""

    lists_the_living = False

    def __init__(self) -> None:
        self.addresses: dict[Host, str] = {}

    def find(self, host: Host) -> str | None:
        return self.addresses.get(host)


@contextlib.contextmanager
def swapped(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[tuple[Names, Speaker, Speaker, Speaker]]:
    """Three data buffers; the names of the last two lead to each other's address."""
    names, last = Names(), Host("b", 1)
    monkeypatch.setattr(connection, "RENEW_SECONDS", 0.1)
    with (
        speaking(A, names, **options) as a,
        speaking(B, names, **options) as b,
        speaking(last, names, **options) as c,
    ):
        names.addresses = {A: a.address, B: c.address, last: b.address}
        yield names, a, b, c


def test_an_address_that_leads_elsewhere_is_looked_up_again(monkeypatch: pytest.MonkeyPatch):
    with swapped(monkeypatch, retry_seconds=0.0, start_seconds=1e6) as (names, a, b, c):
        b.links.send(A, message(7))  # who has called may still have a stale address
        assert b.links.flush(30.0)
        a.links.send(b.host, message(0))
        a.links.send(c.host, message(1))
        with pytest.raises(Elsewhere, match="host b-0 refused the call: this is the data buffer of host b-1"):
            a.links.stream(B, TICKET, 5.0, ignore)
        assert not a.links.flush(0.3)
        names.addresses |= {b.host: b.address, c.host: c.address}
        assert a.links.flush(30.0)
        assert (b.messages, c.messages) == ([message(0)], [message(1)])
        assert [item.lost + item.failed for item in (a, b, c)] == [[], [], []]


def test_an_address_that_leads_elsewhere_for_too_long_is_named(monkeypatch: pytest.MonkeyPatch):
    with swapped(monkeypatch, start_seconds=0.3) as (_, a, b, _):
        a.links.send(b.host, message(0))
        ((host, error),) = wait_for(lambda: list(a.lost))
        assert host == B and type(error) is PeerLost and b.heard == []
        words = (
            "^the data buffer of host b-0 refused the call: this is the data buffer of host b-1; away for .* s, it has"
        )
        assert re.match(words, str(error)), str(error)


def test_a_peer_that_has_answered_and_whose_address_leads_elsewhere_then_is_lost(monkeypatch: pytest.MonkeyPatch):
    with swapped(monkeypatch, retry_seconds=0.3, start_seconds=1e6) as (names, a, b, c):
        names.addresses[B] = b.address
        a.links.send(B, message(0))
        assert a.links.flush(30.0) and b.server is not None
        names.addresses[B] = c.address
        b.server.shutdown()
        a.links.send(B, message(1))
        ((host, error),) = wait_for(lambda: list(a.lost))
        assert host == B and "refused the call: this is the data buffer of host b-1; away for" in str(error)


@pytest.mark.parametrize("num_damaged", [1, 3])
def test_messages_that_are_damaged_on_the_way_are_sent_again_and_heard_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_damaged: int
):
    """The first call and its answer are damaged in turn."""
    damages = [1] * num_damaged

    def damaging(body: bytes) -> bytes:
        return sealed(body)[:-1] + b"!" if damages and damages.pop() else sealed(body)

    monkeypatch.setattr(connection, "sealed", damaging)
    with two(tmp_path) as (a, b):
        a.links.send(B, message(0))
        assert a.links.flush(30.0)
        assert b.messages == [message(0)] and damages == [] and (a.lost, a.failed, b.failed) == ([], [], [])


def test_messages_that_are_always_damaged_are_a_lost_peer_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flight, "sealed", lambda body: sealed(body)[:-1] + b"!")
    with two(tmp_path) as (a, b):
        a.links.send(B, message(0))
        ((host, error),) = wait_for(lambda: list(a.lost))
        assert host == B and b.messages == [message(0)]
        words = (
            r"the data buffer of host b-0: an answer of 9 bytes was damaged on the way; away for 0\.\d s, it has never"
        )
        assert re.match(words, str(error)), str(error)


# ---- questions and streams


def test_questions_go_to_all_at_once_and_those_not_answered_are_lost_peers(tmp_path: Path):
    go_on = threading.Event()
    book = tmp_path / "book.json"
    first, second = Host("b", 1), Host("b", 2)
    with closed_port() as nobody, two(tmp_path) as (a, b), speaking(first, book) as hung:

        def hang(question: object) -> dict[str, Any]:
            go_on.wait()
            return {}

        hung.answers = hang
        write_book(book, {"b": [b.address, hung.address, nobody]})
        answers = a.links.ask([first, second, B], WhatDoTheyDo(), 1.0)
        go_on.set()
        assert answers[B] == ANSWER and list(answers) == [first, second, B]
        for host in (first, second):
            error = answers[host]
            assert isinstance(error, PeerLost) and f"the data buffer of host {host} d" in str(error)
        assert a.links.ask([], WhatDoTheyDo(), 1.0) == {} and a.lost == []


def test_what_an_answering_peer_raises_is_told_instead(tmp_path: Path):
    def fails(question: object) -> dict[str, Any]:
        raise KeyError("a->b")

    with two(tmp_path) as (a, b):
        b.answers = fails
        error = a.links.ask([B], WhatDoTheyDo(), 5.0)[B]
        assert isinstance(error, PeerLost) and str(error) == "the data buffer of host b-0: ask: KeyError('a->b')"


def test_a_stream_gives_what_is_there(tmp_path: Path):
    with two(tmp_path) as (a, _):
        came: list[bytes] = []
        a.links.stream(B, TICKET, 5.0, lambda record, checksum: came.append(checksum))
        assert came == [CHECKSUM]


@pytest.mark.parametrize(
    "raised, kind, words",
    [(BadData("no such share"), BadData, "^no such share$"), (KeyError("x"), Bug, r"a stream: KeyError\('x'\)")],
)
def test_errors_of_a_stream_keep_their_names_at_its_start_and_in_its_middle(
    tmp_path: Path, raised: Exception, kind: type, words: str
):
    def at_once(ticket: object) -> Any:
        raise raised

    def later(ticket: object) -> Any:
        return record_stream(raised)

    with two(tmp_path) as (a, b):
        b.streams = at_once
        with pytest.raises(kind, match=words):
            a.links.stream(B, TICKET, 5.0, ignore)
        b.streams = later
        came: list[bytes] = []
        with pytest.raises(kind, match=words):
            a.links.stream(B, TICKET, 5.0, lambda record, checksum: came.append(checksum))
        assert came == [CHECKSUM]
        assert a.lost == []


def test_a_stream_of_a_peer_that_is_away_looks_after_it(tmp_path: Path):
    book = tmp_path / "book.json"
    with closed_port() as nobody, speaking(A, book) as a:
        write_book(book, {"b": [nobody]})
        with pytest.raises(Away, match="host b-0 does not answer"):
            a.links.stream(B, TICKET, 1.0, ignore)
        ((host, _),) = wait_for(lambda: list(a.lost))
        assert host == B


@pytest.mark.parametrize("answer", ["", "x" * 101, "\u00e9"])
def test_answers_that_are_none_are_refused_by_name(tmp_path: Path, answer: str):
    with two(tmp_path) as (a, b):
        b.take = lambda sender, life, envelope: answer  # type: ignore[method-assign]
        a.links.send(B, message(0))
        ((host, error),) = wait_for(lambda: list(a.lost))
        assert host == B and isinstance(error, Malformed)
        assert str(error) == f"{len(answer.encode())} bytes do not tell one data buffer from the next"


@pytest.mark.parametrize("answer", ["x", "x" * 100])
def test_any_short_text_tells_one_data_buffer_from_the_next(tmp_path: Path, answer: str):
    with two(tmp_path) as (a, b):
        b.take = lambda sender, life, envelope: answer  # type: ignore[method-assign]
        a.links.send(B, message(0))
        assert a.links.flush(30.0) and a.lost == []


def test_a_peer_that_goes_away_in_the_middle_of_a_stream_is_looked_after(tmp_path: Path):
    book = tmp_path / "book.json"
    with speaking(A, book) as a, hanging_up() as address:
        write_book(book, {"b": [address]})
        with pytest.raises(Away, match="the data buffer of host b-0 does not answer"):
            a.links.stream(B, TICKET, 30.0, ignore)
        ((host, _),) = wait_for(lambda: list(a.lost))
        assert host == B


@contextlib.contextmanager
def hanging_up() -> Iterator[str]:
    """Callers there are hung up on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            with contextlib.suppress(OSError):  # the listener's end
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def ignore(record: object, checksum: bytes) -> None:
    return


# ---- guests, which may come and go


@contextlib.contextmanager
def host_and_guest(
    directory: Path, when_lost: Callable[[], None] = lambda: None, **options: Any
) -> Iterator[tuple[Speaker, Speaker, list[tuple[Host, PeerLost]]]]:
    """A host, a guest, and the guests that the host has lost."""
    lost: list[tuple[Host, PeerLost]] = []
    book = directory / "book.json"

    def guest_lost(host: Host, error: PeerLost) -> None:
        lost.append((host, error))
        when_lost()

    guests = {"is_guest": lambda host: host.group == "b", "guest_lost": guest_lost}
    with speaking(A, book, **guests, **options) as a, speaking(B, book) as b:
        write_book(book, {"a": [a.address], "b": [b.address]})
        yield a, b, lost


def test_a_lost_guest_breaks_nothing_and_another_process_may_have_its_name(tmp_path: Path):
    book = tmp_path / "book.json"
    with host_and_guest(tmp_path) as (a, b, lost):
        b.links.send(A, message(0))
        a.links.send(B, message(1))
        assert a.links.flush(30.0) and b.links.flush(30.0)
        assert b.server is not None
        b.links.close()
        b.server.shutdown()
        a.links.watch([B])
        ((host, error),) = wait_for(lambda: list(lost))
        assert host == B and "host b-0 does not answer" in str(error)
        assert (a.lost, a.failed) == ([], []) and wait_for(lambda: B not in a.links.peers)
        with speaking(B, book, "second") as second:
            write_book(book, {"a": [a.address], "b": [second.address]})
            second.links.send(A, message(2))
            a.links.send(B, message(3))
            assert second.links.flush(30.0) and a.links.flush(30.0)
            assert a.messages == [message(0), message(2)] and second.messages == [message(3)]
            with pytest.raises(Refused, match="host b-0 was given up, and what it had is given to others"):
                a.links.take(B, "b-0-first", Envelope(1, (message(4),)))


def test_two_guests_of_one_name_are_refused_while_the_first_is_there(tmp_path: Path):
    with host_and_guest(tmp_path) as (a, b, lost):
        b.links.send(A, message(0))
        assert b.links.flush(30.0)
        with pytest.raises(Elsewhere, match="another data buffer of host b-0 is connected: two of one name are ref"):
            a.links.take(B, "second", Envelope(0, (message(1),)))
        b.links.send(A, message(2))
        assert b.links.flush(30.0) and a.messages == [message(0), message(2)] and lost == []


@pytest.mark.parametrize(
    "envelope, words",
    [
        (Envelope(7, (message(1),)), "begins with message 7, expected is 1"),
        (Envelope(1, (message(99),)), "RowsTaken from host b-0, edge a->b, step 99: not so"),
    ],
)
def test_what_a_guest_says_that_cannot_be_so_ends_the_guest_alone(tmp_path: Path, envelope: Envelope, words: str):
    def hears(sender: Host, said: PeerMessage) -> None:
        if said == message(99):
            raise OutOfOrder("not so")

    with host_and_guest(tmp_path) as (a, b, lost):
        a.hears = hears
        b.links.send(A, message(0))
        assert b.links.flush(30.0)
        with pytest.raises(Malformed, match=words):
            a.links.take(B, "b-0-first", envelope)
        ((host, error),) = lost
        assert host == B and words in str(error) and (a.lost, a.failed) == ([], [])
        b.links.send(A, message(2))
        assert wait_for(lambda: b.lost) and "host b-0 was given up" in str(b.lost[0][1])


def test_a_bug_of_ours_is_no_matter_of_the_guest(tmp_path: Path):
    def hears(sender: Host, said: PeerMessage) -> None:
        raise KeyError("c")

    with host_and_guest(tmp_path) as (a, b, lost):
        a.hears = hears
        b.links.send(A, message(0))
        assert b.links.flush(30.0) and lost == []
        assert [type(error) for error in a.failed] == [Bug]


def test_a_guest_whose_name_is_new_has_longer_than_one_that_has_answered(tmp_path: Path):
    with closed_port() as nobody:
        by_name, lost = nobody.replace("127.0.0.1", "localhost"), list[Host]()
        guests = {"is_guest": lambda host: True, "guest_lost": lambda host, error: lost.append(host)}
        with speaking(A, by_name, **guests, retry_seconds=0.0, start_seconds=1e6) as a:
            a.links.take(B, "first", Envelope(0, ()))  # it is heard, and cannot be called yet
            a.links.send(B, message(0))
            assert not a.links.flush(1.0) and lost == []
            assert peer.GUEST_START_SECONDS == 60.0


def test_the_name_of_a_lost_guest_is_free_once_its_loss_is_dealt_with(tmp_path: Path):
    refused: list[str] = []

    def both_speak() -> None:
        for life in ("second", "b-0-first"):
            with pytest.raises((Elsewhere, Refused)) as error:
                a.links.take(B, life, Envelope(1 if life == "b-0-first" else 0, (message(1),)))
            refused.append(type(error.value).__name__)

    with host_and_guest(tmp_path, both_speak) as (a, b, lost):
        b.links.send(A, message(0))
        assert b.links.flush(30.0)
        a.links.end_guest(B, PeerLost("it is silent"))
        # the one that comes in its place tries again, the other never may
        assert refused == ["Elsewhere", "Refused"] and len(lost) == 1
        assert a.links.take(B, "second", Envelope(0, (message(2),))) == a.life
        assert a.messages == [message(0), message(2)]


def test_the_name_of_a_guest_that_leaves_is_free_at_once(tmp_path: Path):
    def is_another_refused() -> None:
        with pytest.raises(Elsewhere, match="two of one name"):
            a.links.take(B, "second", Envelope(0, (message(1),)))
        left.append(B)

    left: list[Host] = []
    with host_and_guest(tmp_path) as (a, b, lost):
        b.links.send(A, message(0))
        assert b.links.flush(30.0)
        a.links.peer_leaves(B, is_another_refused)
        assert left == [B]
        assert a.links.take(B, "second", Envelope(0, (message(1),))) == a.life
        assert a.messages == [message(0), message(1)] and lost == []
