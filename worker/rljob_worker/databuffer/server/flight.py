"""The Flight server of a data buffer for its peers: messages and questions as actions, rows and weights as streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight

from rljob_api.planning.plan import GroupPlan
from rljob_worker.databuffer.links.connection import MAX_BYTES
from rljob_worker.databuffer.links.faults import to_flight
from rljob_worker.databuffer.links.fencing import Caller, Fence, Identity, Lie, Side, check_certificate
from rljob_worker.databuffer.protocol.codec import encode, opened, read_envelope, read_question, read_ticket, sealed
from rljob_worker.databuffer.protocol.errors import Bug, Malformed
from rljob_worker.databuffer.protocol.peer_side import Answer, Envelope, Question, Ticket
from rljob_worker.databuffer.protocol.streams import RecordStream
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.errors import RLJobError

if TYPE_CHECKING:
    from rljob_worker.databuffer.links.credentials import Credentials

MAX_TICKET_BYTES = 64 << 10
SHOWN_CHARACTERS = 40
"""Of an action that is none."""

Action = Callable[[Caller, memoryview], bytes]


class PeerSide(Protocol):
    """What answers the other data buffers. Errors of ours reach the caller by name."""

    def take(self, sender: Host, life: str, envelope: Envelope) -> str:
        """Hear messages; returns the life of this process."""

    def answer(self, question: Question) -> Answer:
        """At once, for an error message."""

    def stream(self, ticket: Ticket) -> RecordStream:
        """What is there now: never waits."""


_GATE = "rljob-gate"


class _Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """The fence around every call."""

    def __init__(self, fence: Fence) -> None:
        super().__init__()
        self._fence = fence

    def start_call(self, info: Any, headers: Mapping[str, Sequence[str]]) -> _Passed:
        try:
            return _Passed(self._fence.admit(headers))
        except Lie as error:
            raise _unauthorized(error) from None


class _Passed(flight.ServerMiddleware):  # type: ignore[misc]
    """Tells a handler who calls."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.caller = caller


class PeerServer(flight.FlightServerBase):  # type: ignore[misc]
    """Actions deliver and ask, and streams by ticket.

    Bodies are checked for their size before they are read; errors of ours keep their names, others are a Bug.
    """

    def __init__(
        self,
        address: str,
        ours: Identity,
        life: str,
        groups: Sequence[GroupPlan],
        side: PeerSide,
        credentials: Credentials | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """address: host:port. credentials: for mutual TLS; None takes plain text."""
        self._side = side
        self._actions: dict[str, Action] = {"deliver": self._deliver, "ask": self._ask}
        self._knows_certificates = credentials is not None
        self._max_bytes = max_bytes
        scheme, tls = ("grpc+tcp", {}) if credentials is None else ("grpc+tls", credentials.of_server())
        gate = _Gate(Fence(ours, life, Side.PEERS, groups))
        super().__init__(f"{scheme}://{address}", middleware={_GATE: gate}, **tls)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[pa.Buffer]:
        name, caller = action.type, self._caller(context)
        with _by_name(name[:SHOWN_CHARACTERS]):
            if name not in self._actions:
                raise Malformed(f"there is no action {name[:SHOWN_CHARACTERS]!r}, only {', '.join(self._actions)}")
            _check_size(name, action.body.size, self._max_bytes)
            return [pa.py_buffer(sealed(self._actions[name](caller, opened(action.body, "a call"))))]

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        self._caller(context)
        with _by_name("a stream"):
            _check_size("a ticket", len(ticket.ticket), MAX_TICKET_BYTES)
            found = self._side.stream(read_ticket(opened(ticket.ticket, "a ticket")))
        return flight.GeneratorStream(found.schema, _sent(found))

    def _deliver(self, caller: Caller, body: memoryview) -> bytes:
        return self._side.take(caller.identity.pod, caller.life, read_envelope(body)).encode()

    def _ask(self, caller: Caller, body: memoryview) -> bytes:
        return encode(self._side.answer(read_question(body)))

    def _caller(self, context: flight.ServerCallContext) -> Caller:
        """Who calls, as the headers say, and where there are certificates as the caller's does."""
        caller: Caller = context.get_middleware(_GATE).caller
        if self._knows_certificates:
            try:
                check_certificate(caller.identity, context.peer_identity().decode(errors="replace"))
            except Lie as error:
                raise _unauthorized(error) from None
        return caller


def _sent(stream: RecordStream) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
    with _by_name("a stream"):
        for record, checksum in stream.records:
            yield record, pa.py_buffer(checksum)


def _unauthorized(lie: Lie) -> flight.FlightUnauthorizedError:
    return flight.FlightUnauthorizedError(str(lie), lie.kind.__name__.encode())


def _check_size(what: str, num_bytes: int, most: int) -> None:
    if num_bytes > most:
        raise Malformed(f"{what} of {num_bytes:,} bytes, at most {most:,} are read")


@contextmanager
def _by_name(what: str) -> Iterator[None]:
    """Errors leave the block as what Flight carries to the caller."""
    try:
        yield
    except RLJobError as error:
        raise to_flight(error) from error
    except Exception as error:
        raise to_flight(Bug(f"{what}: {error!r}")) from error
