"""A worker's calls to the data buffer of its own host."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.flight as flight

from rljob_worker.databuffer.links.connection import OPTIONS
from rljob_worker.databuffer.links.faults import errors_of
from rljob_worker.databuffer.links.fencing import Identity, headers_of
from rljob_worker.databuffer.protocol.codec import encode, read_answer
from rljob_worker.databuffer.protocol.worker_side import NotYet, Request, Waiting, WorkerAnswer
from rljob_worker.errors import DeadlineExceeded

CALL_SECONDS = 30.0
GRACE_SECONDS = 10.0
"""The data buffer explains a time-out better than its client can: the client waits this much longer."""


class OwnBuffer:
    """Requests may come from several threads. Raises what the data buffer raised by name, PeerLost when it is gone."""

    def __init__(self, socket: str | Path, identity: Identity) -> None:
        self.whom = f"the data buffer of host {identity.pod} (own sidecar, {socket})"
        self._identity = identity
        self._life = secrets.token_hex()
        self._headers = headers_of(identity, self._life, None)
        self._client = flight.FlightClient(f"grpc+unix://{socket}", generic_options=OPTIONS)

    def expect(self, life: str) -> None:
        """Speak to this process only, and not to one that takes its place."""
        self._headers = headers_of(self._identity, self._life, life)

    def call(self, request: Request) -> WorkerAnswer:
        """One answer; NotYet where the request has to wait."""
        options = flight.FlightCallOptions(timeout=CALL_SECONDS, headers=self._headers)
        with errors_of(self.whom):
            answers = self._client.do_action(flight.Action("call", encode(request)), options)
            data = b"".join(answer.body.to_pybytes() for answer in answers)
        answer: WorkerAnswer = read_answer(data)
        return answer

    def poll(self, request: Callable[[float], Waiting], seconds: float) -> WorkerAnswer:
        """Ask until the answer is there: every call is short, so that signals reach Python between two of them.

        request: makes the request of the seconds waited so far.
        """
        start = time.monotonic()
        while True:
            waited = time.monotonic() - start
            asked = request(waited)
            answer = self.call(asked)
            if not isinstance(answer, NotYet):
                return answer
            if waited > seconds + GRACE_SECONDS:
                raise DeadlineExceeded(f"{self.whom} had no answer to {asked} in {waited:.0f} s")

    def close(self) -> None:
        self._client.close()
