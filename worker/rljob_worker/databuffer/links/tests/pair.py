"""Data buffers that only speak: links and servers on real sockets, what they hear and whom they lose in lists."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rljob_api.planning.plan import GroupPlan
from rljob_worker.batch.arrow import array_over
from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.links.connection import PeerConnection
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.links.links import Links, LinkSettings
from rljob_worker.databuffer.protocol.peer_side import Envelope, PeerAnswer, PeerMessage, Question, RecordStream, Ticket
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.server.flight import PeerServer
from rljob_worker.databuffer.work import Timer
from rljob_worker.errors import PeerLost, RLJobError

TOKEN = "a-secret-of-the-job"
PLAN = "f" * 64
RECORD = pa.RecordBatch.from_arrays([array_over(np.arange(4))], names=["numbers"])
CHECKSUM = b"checksum"
READ = ([0, 1, 2, 3], CHECKSUM)


def record_stream(*ends: Exception, times: int = 1) -> RecordStream:
    """A record batch several times, and an error if there is one."""

    def records() -> Iterator[tuple[pa.RecordBatch, bytes]]:
        yield from [(RECORD, CHECKSUM)] * times
        for error in ends:
            raise error

    return RecordStream(RECORD.schema, records())


def streamed(connection: PeerConnection, ticket: bytes, seconds: float = 30.0) -> list[tuple[list[int], bytes]]:
    """What a peer gives for a ticket."""
    result: list[tuple[list[int], bytes]] = []
    connection.stream(ticket, seconds, lambda record, checksum: result.append((record.column(0).to_pylist(), checksum)))
    return result


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
    server: PeerServer | None = None
    heard: list[tuple[Host, PeerMessage]] = field(default_factory=list)
    lost: list[tuple[Host, PeerLost]] = field(default_factory=list)
    failed: list[RLJobError] = field(default_factory=list)
    num_taken: int = 0
    """Envelopes, also empty ones."""
    hears: Callable[[Host, PeerMessage], None] = lambda sender, message: None
    answers: Callable[[Question], PeerAnswer] = lambda question: {"0": {"question": type(question).__name__}}
    streams: Callable[[Ticket], RecordStream] = lambda ticket: record_stream()

    def take(self, sender: Host, life: str, envelope: Envelope) -> str:
        self.num_taken += 1
        return self.links.take(sender, life, envelope)

    def answer(self, question: Question) -> PeerAnswer:
        return self.answers(question)

    def stream(self, ticket: Ticket) -> RecordStream:
        return self.streams(ticket)

    def hear(self, sender: Host, message: PeerMessage) -> None:
        self.heard.append((sender, message))
        self.hears(sender, message)

    def serve(self, port: int) -> None:
        self.server = PeerServer(f"127.0.0.1:{port}", identity(self.host), self.life, groups(), self)

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
    settings = LinkSettings(
        address_book=book if isinstance(book, AddressBook) else AddressBook(str(book), "testing"),
        identity=identity(host),
        **{
            "retry_seconds": 0.5,
            "start_seconds": 20.0,
            **{name: options.pop(name) for name in LinkSettings.__slots__ if name in options},
        },
    )
    links = Links(
        settings,
        life=f"{host}-{life}",
        hears=lambda sender, message: speaker.hear(sender, message),
        lost=lambda peer, error: speaker.lost.append((peer, error)),
        fails=lambda error: speaker.failed.append(error),
        timer=timer,
        **options,
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
