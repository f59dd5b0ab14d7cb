"""Hosts that exist for their neighbours only, and who has heard what."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rljob_api.planning.plan import Plan
from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.links.links import Links, LinkSettings
from rljob_worker.databuffer.protocol.peer_side import (
    Down,
    Envelope,
    PeerAnswer,
    PeerMessage,
    Question,
    RecordStream,
    Ticket,
    Up,
)
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.job_tree import REPORT, VERDICT
from rljob_worker.databuffer.server.flight import PeerServer
from rljob_worker.databuffer.tests.gang import TOKEN
from rljob_worker.databuffer.work import Timer

TIMEOUT_SECONDS = 60.0
RETRY_SECONDS = 60.0


class EmulatedHost:
    """One data buffer as its neighbours see it."""

    def __init__(
        self,
        plan: Plan,
        host: Host,
        address_book: Path,
        timer: Timer,
        payload: bytes,
        heard: Callable[[Host, int], None],
    ) -> None:
        self.here, self.payload = host, payload
        self._heard = heard
        identity = Identity(TOKEN, 1, plan.hash(), host.group, host.index)
        life = secrets.token_hex()
        self.links = Links(
            LinkSettings(
                address_book=AddressBook(str(address_book), plan.job),
                identity=identity,
                retry_seconds=RETRY_SECONDS,
                start_seconds=RETRY_SECONDS,
            ),
            life=life,
            hears=self._hear,
            lost=lambda peer, error: print(f"{self.here} lost {peer}: {error}"),
            fails=print,
            timer=timer,
        )
        self._server = PeerServer("127.0.0.1:0", identity, life, plan.groups, self)
        self.port: int = self._server.port

    def report(self, to: Host, step: int) -> None:
        """All workers of this host and of those below it."""
        self.links.send(to, Up(REPORT, step, self.payload))

    def close(self) -> None:
        self.links.close()
        self._server.shutdown()

    def take(self, sender: Host, life: str, envelope: Envelope) -> str:
        return self.links.take(sender, life, envelope)

    def answer(self, question: Question) -> PeerAnswer:
        return {}

    def stream(self, ticket: Ticket) -> RecordStream:
        raise NotImplementedError

    def _hear(self, sender: Host, message: PeerMessage) -> None:
        if isinstance(message, Down) and message.topic == VERDICT:
            self._heard(self.here, message.step)


class Ears:
    """Who has heard which verdict, and when."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._when: dict[tuple[Any, int], float] = {}

    def heard(self, who: Any, step: int) -> None:
        with self._changed:
            self._when[who, step] = time.perf_counter()
            self._changed.notify_all()

    def all_heard(self, everybody: Sequence[Any], step: int) -> list[float]:
        """When each did; waits for the last."""
        with self._changed:
            heard = self._changed.wait_for(lambda: all((who, step) in self._when for who in everybody), TIMEOUT_SECONDS)
            assert heard, f"verdict {step} has reached {len(self._when)} of {len(everybody)} hosts and workers"
            return [self._when[who, step] for who in everybody]
