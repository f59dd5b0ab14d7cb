"""Gangs for trouble: data buffers that end one by one, processes that start in no time, and one that lies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.links.links import Links, LinkSettings
from rljob_worker.databuffer.protocol.peer_side import Envelope, PeerAnswer, PeerMessage, Question, RecordStream, Ticket
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.server.flight import PeerServer
from rljob_worker.databuffer.server.process import serve_buffer, settings_from
from rljob_worker.databuffer.tests.gang import TOKEN, Gang
from rljob_worker.databuffer.tests.warm import BufferProcess
from rljob_worker.databuffer.work import Timer
from rljob_worker.errors import PeerLost


@contextlib.contextmanager
def separately(
    plan: Plan, directory: Path, without: str = "", **more: str
) -> Iterator[tuple[Gang, dict[str, contextlib.ExitStack]]]:
    """Data buffers in this process; to close one's stack is its SIGTERM. `without`: a host that is not started."""
    gang, stacks = Gang(plan, directory), dict[str, contextlib.ExitStack]()
    gang.write_files()
    with contextlib.ExitStack() as everything:
        for name, host in gang.hosts():
            if f"{name}-{host}" == without:
                continue
            stack = stacks[f"{name}-{host}"] = everything.enter_context(contextlib.ExitStack())
            gang.ready[f"{name}-{host}"] = stack.enter_context(
                serve_buffer(settings_from({**gang.environment(name, host), **more}))
            )
        if not without:
            gang.write_book()
        everything.enter_context(contextlib.closing(gang))
        yield gang, stacks


@dataclass
class Liar:
    """In the place of a data buffer: one of us by its token, and says what it likes."""

    links: Links
    heard: list[tuple[Host, PeerMessage]] = field(default_factory=list)
    rows: RecordStream | None = None
    """What it gives to peers that ask for a stream."""

    def take(self, sender: Host, life: str, envelope: Envelope) -> str:
        return self.links.take(sender, life, envelope)

    def answer(self, question: Question) -> PeerAnswer:
        return {"said": {}, "below": []}

    def stream(self, ticket: Ticket) -> RecordStream:
        if self.rows is None:
            raise PeerLost("there is nothing")
        return self.rows


@contextlib.contextmanager
def lying(plan: Plan, directory: Path, name: str, index: int) -> Iterator[tuple[Gang, Liar]]:
    with separately(plan, directory, f"{name}-{index}") as (gang, _):
        here = Identity(TOKEN, 1, plan.hash(), name, index)
        liar: Liar
        timer = Timer(lambda error: None)
        book = AddressBook(str(directory / "peers.json"), plan.job)
        links = Links(
            LinkSettings(address_book=book, identity=here, retry_seconds=1.0, start_seconds=5.0),
            life="liar",
            hears=lambda sender, message: liar.heard.append((sender, message)),
            lost=lambda host, error: None,
            fails=lambda error: None,
            timer=timer,
        )
        liar = Liar(links)
        with PeerServer("127.0.0.1:0", here, "liar", plan.groups, liar) as server:
            gang.ready[f"{name}-{index}"] = {"port": server.port}
            gang.write_book()
            try:
                yield gang, liar
            finally:
                links.close()
                timer.close()


@dataclass
class Forked:
    """Data buffers as processes of their own, forked from one that has imported everything."""

    gang: Gang
    processes: dict[str, BufferProcess] = field(default_factory=dict)

    def start(self, name: str, host: int, **more: str) -> None:
        process = self.processes[f"{name}-{host}"] = BufferProcess(self.gang, name, host, **more)
        self.gang.ready[f"{name}-{host}"] = json.loads(process.stdout.readline())

    def send(self, number: signal.Signals, *hosts: str) -> None:
        for host in hosts:
            os.kill(self.processes[host].pid, number)
            if number is signal.SIGKILL:
                _end(self.processes[host])


def _end(process: BufferProcess) -> None:
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


@contextlib.contextmanager
def forked(plan: Plan, directory: Path, **more: str) -> Iterator[Forked]:
    """Every data buffer a process that may be stopped and killed."""
    gang = Forked(Gang(plan, directory))
    gang.gang.write_files()
    try:
        for name, host in gang.gang.hosts():
            gang.start(name, host, **more)
        gang.gang.write_book()
        yield gang
    finally:
        gang.gang.close()
        for process in gang.processes.values():
            _end(process)
