"""Data buffers that only speak: links and servers on real sockets, what they hear and whom they lose in lists."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_api.planning.plan import GroupPlan
from rljob_worker.databuffer.links.book import AddressBook
from rljob_worker.databuffer.links.connection import Connection
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.links.links import Links
from rljob_worker.databuffer.protocol.peer_side import Answer, Envelope, PeerMessage, Question, Ticket
from rljob_worker.databuffer.protocol.streams import Held, Portion
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.server.flight import PeerServers, serve_peers
from rljob_worker.databuffer.work import Timer
from rljob_worker.errors import PeerLost, RLJobError

TOKEN = "a-secret-of-the-job"
PLAN = "f" * 64
PORTION = Held(b"four letters", [memoryview(b"a"), memoryview(b"bcd")])
READ = (b"four letters", b"abcd")


class Reading(list[tuple[bytes, bytes]]):
    """Heads and bytes of a stream; the bytes are brought to two places."""

    def take(self, portion: Portion) -> None:
        found = bytearray(portion.num_bytes)
        view = memoryview(found)
        portion.into([view[:1], view[1:]])
        self.append((portion.head, bytes(found)))


def streamed(connection: Connection, ticket: bytes, seconds: float = 30.0) -> list[tuple[bytes, bytes]]:
    """What a peer gives for a ticket."""
    reading = Reading()
    connection.stream(ticket, seconds, reading.take)
    return reading


def groups(num_hosts: int = 200, workers_per_host: int = 2) -> list[GroupPlan]:
    return [
        GroupPlan(
            name=name,
            replicas=num_hosts,
            workers_per_host=workers_per_host,
            device="cpu",
            backend="gloo",
            profile="cpu",
            schedule=(),
        )
        for name in ("a", "b")
    ]


def identity(host: Host, /, **other: Any) -> Identity:
    shown = {"token": TOKEN, "attempt": 1, "plan_hash": PLAN, "group": host.group, "host": host.index}
    return Identity(**{**shown, **other})


@dataclass
class Speaker:
    """One data buffer."""

    host: Host
    life: str
    links: Links
    server: PeerServers | None = None
    heard: list[tuple[Host, PeerMessage]] = field(default_factory=list)
    lost: list[tuple[Host, PeerLost]] = field(default_factory=list)
    failed: list[RLJobError] = field(default_factory=list)
    num_taken: int = 0
    """Envelopes, also empty ones."""
    hears: Callable[[Host, PeerMessage], None] = lambda sender, message: None
    answers: Callable[[Question], Answer] = lambda question: {"0": {"question": type(question).__name__}}
    streams: Callable[[Ticket], Iterable[Held]] = lambda ticket: [PORTION]

    def take(self, sender: Host, life: str, envelope: Envelope) -> str:
        self.num_taken += 1
        return self.links.take(sender, life, envelope)

    def answer(self, question: Question) -> Answer:
        return self.answers(question)

    def stream(self, ticket: Ticket) -> Iterable[Held]:
        return self.streams(ticket)

    def hear(self, sender: Host, message: PeerMessage) -> None:
        self.heard.append((sender, message))
        self.hears(sender, message)

    def serve(self, port: int) -> None:
        self.server = serve_peers(f"127.0.0.1:{port}", identity(self.host), self.life, groups(), self)

    @property
    def address(self) -> str:
        assert self.server is not None
        return f"127.0.0.1:{self.server.port}"

    @property
    def messages(self) -> list[PeerMessage]:
        return [message for _, message in self.heard]


@contextlib.contextmanager
def speaking(
    host: Host, book: AddressBook | Path | str, life: str = "first", *, port: int = 0, **options: Any
) -> Iterator[Speaker]:
    """A data buffer whose server is up but in no address book."""
    speaker: Speaker
    timer = Timer(lambda error: speaker.failed.append(error))
    timing = {"retry_seconds": 0.5, "start_seconds": 20.0, **options}
    links = Links(
        book=book if isinstance(book, AddressBook) else AddressBook(str(book), "testing"),
        identity=identity(host),
        life=f"{host}-{life}",
        hears=lambda sender, message: speaker.hear(sender, message),
        lost=lambda peer, error: speaker.lost.append((peer, error)),
        fails=lambda error: speaker.failed.append(error),
        timer=timer,
        **timing,
    )
    speaker = Speaker(host, f"{host}-{life}", links)
    speaker.serve(port)
    try:
        yield speaker
    finally:
        links.close()
        timer.close()
        speaker.server.shutdown()


def write_book(path: Path, addresses: dict[str, list[str]]) -> None:
    aside = path.with_name(".book")
    aside.write_text(json.dumps(addresses))
    aside.rename(path)
