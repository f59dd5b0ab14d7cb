"""The Flight server of a data buffer for its peers: messages and questions as actions, rows and weights as streams."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight

from rljob_api.planning.plan import GroupPlan
from rljob_worker.databuffer.links.connection import MAX_BYTES
from rljob_worker.databuffer.links.faults import to_flight
from rljob_worker.databuffer.links.fencing import (
    BufferService,
    Caller,
    Fence,
    Identity,
    InvalidCaller,
    check_certificate,
    is_reader,
)
from rljob_worker.databuffer.protocol.codec import (
    encode,
    opened,
    read_envelope,
    read_part_ticket,
    read_question,
    read_ticket,
    sealed,
)
from rljob_worker.databuffer.protocol.errors import Away, Bug, Malformed
from rljob_worker.databuffer.protocol.peer_side import Envelope, PartTicket, PeerAnswer, Question, RecordStream, Ticket
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.server.readers import PartInfo, ReadableParts
from rljob_worker.errors import RLJobError

if TYPE_CHECKING:
    from rljob_worker.databuffer.links.credentials import TlsCredentials

READING = (flight.FlightMethod.LIST_FLIGHTS, flight.FlightMethod.GET_FLIGHT_INFO, flight.FlightMethod.DO_GET)
"""What a client may call that is not a host of the job."""
MAX_STREAMS = 64
"""Streams to one host, at most: twice what a data buffer reads at once."""
MAX_READERS = 4
SHUTDOWN_SECONDS = 5.0
MAX_TICKET_BYTES = 64 << 10
SHOWN_CHARACTERS = 40
"""Characters shown of the name of an action that does not exist."""

Action = Callable[[Caller, memoryview], bytes]


class PeerHandler(Protocol):
    """What answers the other data buffers. Errors of ours reach the caller by name."""

    def take(self, sender: Host, life: str, envelope: Envelope) -> str:
        """Hear messages; returns the life of this process."""

    def answer(self, question: Question) -> PeerAnswer:
        """At once, for an error message."""

    def stream(self, ticket: Ticket) -> RecordStream:
        """What is there now: never waits."""

    @property
    def readers(self) -> ReadableParts:
        """What clients that are not hosts of the job may read."""


_GATE = "rljob-gate"


class _Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """The fence around every call."""

    def __init__(self, fence: Fence, refused: Callable[[str], None]) -> None:
        super().__init__()
        self._fence = fence
        self._refused = refused

    def start_call(self, info: Any, headers: Mapping[str, Sequence[str]]) -> _Passed:
        try:
            if is_reader(headers) and info.method in READING:
                self._fence.admit_reader(headers)
                return _Passed(None)
            return _Passed(self._fence.admit(headers))
        except InvalidCaller as error:
            self._refused(error.kind.__name__)
            raise _unauthorized(error) from None


class _Passed(flight.ServerMiddleware):  # type: ignore[misc]
    """Tells a handler who calls; None: a reader."""

    def __init__(self, caller: Caller | None) -> None:
        super().__init__()
        self.caller = caller


class OpenStreams:
    """How many streams each caller has open: each takes a thread of the server for as long as it is read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()

    @contextmanager
    def one(self, caller: str, most: int) -> Iterator[None]:
        """Raises Away when the caller has as many as it may have."""
        with self._lock:
            if self._open[caller] >= most:
                raise Away(f"{caller}: {most} streams are open, and more are not served at once")
            self._open[caller] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[caller] -= 1


class PeerServer(flight.FlightServerBase):  # type: ignore[misc]
    """Actions deliver and ask, and streams by ticket; for clients that are not hosts a list of parts to read.

    Bodies are checked for their size before they are read; errors of ours keep their names, others are a Bug.
    """

    def __init__(
        self,
        address: str,
        ours: Identity,
        life: str,
        groups: Sequence[GroupPlan],
        side: PeerHandler,
        credentials: TlsCredentials | None = None,
        max_bytes: int = MAX_BYTES,
        refused: Callable[[str], None] = lambda kind: None,
    ) -> None:
        """address: host:port. credentials: for mutual TLS; None takes plain text. refused: hears the class of the
        error of every call that is refused or fails."""
        self._side = side
        self._actions: dict[str, Action] = {"deliver": self._deliver, "ask": self._ask}
        self._knows_certificates = credentials is not None
        self._max_bytes = max_bytes
        scheme, tls = ("grpc+tcp", {}) if credentials is None else ("grpc+tls", credentials.of_server())
        self._refused = refused
        self._streams = OpenStreams()
        gate = _Gate(Fence(ours, life, BufferService.PEERS, groups), refused)
        super().__init__(f"{scheme}://{address}", middleware={_GATE: gate}, **tls)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[pa.Buffer]:
        name, caller = action.type, self._caller(context)
        assert caller is not None, "a reader takes no action"
        with self._by_name(name[:SHOWN_CHARACTERS]):
            if name not in self._actions:
                raise Malformed(f"there is no action {name[:SHOWN_CHARACTERS]!r}, only {', '.join(self._actions)}")
            _check_size(name, action.body.size, self._max_bytes)
            return [pa.py_buffer(sealed(self._actions[name](caller, opened(action.body, "a call"))))]

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        caller = self._caller(context)
        with self._by_name("a stream"):
            _check_size("a ticket", len(ticket.ticket), MAX_TICKET_BYTES)
            if caller is None:
                stream = self._side.readers.stream(read_part_ticket(ticket.ticket))
                return flight.GeneratorStream(stream.schema, self._sent(stream, "readers", MAX_READERS))
            stream = self._side.stream(read_ticket(opened(ticket.ticket, "a ticket")))
            sent = self._sent(stream, f"host {caller.identity.pod}", MAX_STREAMS)
            return flight.GeneratorStream(stream.schema, sent)

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """The parts that lie here, or those of the edge that `criteria` names."""
        self._caller(context)
        with self._by_name("a list"):
            edge = criteria.decode(errors="replace")
            return iter([_info(part) for part in self._side.readers.parts() if edge in ("", part.ticket.edge)])

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Description of the part at path [edge, step, part]."""
        self._caller(context)
        with self._by_name("a description"):
            return _info(self._side.readers.part(_ticket_at(descriptor)))

    def shutdown(self) -> None:
        """Take no more calls. A stream whose reader has stopped does not end: the process does not wait for it."""
        ending = threading.Thread(target=super().shutdown, name="shutdown", daemon=True)
        ending.start()
        ending.join(SHUTDOWN_SECONDS)

    def _deliver(self, caller: Caller, body: memoryview) -> bytes:
        return self._side.take(caller.identity.pod, caller.life, read_envelope(body)).encode()

    def _ask(self, caller: Caller, body: memoryview) -> bytes:
        return encode(self._side.answer(read_question(body)))

    def _caller(self, context: flight.ServerCallContext) -> Caller | None:
        """Who calls, as the headers say, and where there are certificates as the caller's does; None: a reader."""
        caller: Caller | None = context.get_middleware(_GATE).caller
        if self._knows_certificates and caller is not None:
            try:
                check_certificate(caller.identity, context.peer_identity().decode(errors="replace"))
            except InvalidCaller as error:
                self._refused(error.kind.__name__)
                raise _unauthorized(error) from None
        return caller

    def _sent(self, stream: RecordStream, caller: str, most: int) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
        with self._by_name("a stream"), self._streams.one(caller, most):
            for record, checksum in stream.records:
                yield record, pa.py_buffer(checksum)

    @contextmanager
    def _by_name(self, what: str) -> Iterator[None]:
        """Errors leave the block as what Flight carries to the caller."""
        try:
            yield
        except RLJobError as error:
            self._refused(type(error).__name__)
            raise to_flight(error) from error
        except Exception as error:
            self._refused(Bug.__name__)
            raise to_flight(Bug(f"{what}: {error!r}")) from error


def _info(part: PartInfo) -> flight.FlightInfo:
    ticket = part.ticket
    path = flight.FlightDescriptor.for_path(ticket.edge, str(ticket.step), str(ticket.part))
    endpoint = flight.FlightEndpoint(encode(ticket), [])
    return flight.FlightInfo(part.schema, path, [endpoint], part.num_rows, part.num_bytes)


def _ticket_at(descriptor: flight.FlightDescriptor) -> PartTicket:
    path = [item.decode(errors="replace") for item in descriptor.path or ()]
    if len(path) != 3 or not all(item.isdecimal() and item.isascii() for item in path[1:]):
        raise Malformed(f"path {path} is not an edge, a step and a part")
    return PartTicket(path[0], int(path[1]), int(path[2]))


def _unauthorized(error: InvalidCaller) -> flight.FlightUnauthorizedError:
    return flight.FlightUnauthorizedError(str(error), error.kind.__name__.encode())


def _check_size(what: str, num_bytes: int, most: int) -> None:
    if num_bytes > most:
        raise Malformed(f"{what} of {num_bytes:,} bytes, at most {most:,} are read")
