"""The connection to one peer: Flight clients for messages and for streams, made when they are needed, which show who we
are; and questions to many peers at once, for error messages."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import pyarrow.flight as flight

from rljob_api.planning.weights.trees import stream_connections
from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.links.faults import errors_of
from rljob_worker.databuffer.links.fencing import Headers, Identity, headers_of
from rljob_worker.databuffer.protocol.codec import encode, opened, sealed
from rljob_worker.databuffer.protocol.errors import Away, Damaged, Elsewhere, Malformed, Refused
from rljob_worker.databuffer.protocol.peer_side import PeerAnswer, Question, Take
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.work import THREADS, Threads
from rljob_worker.errors import PeerLost

if TYPE_CHECKING:
    from rljob_worker.databuffer.links.credentials import TlsCredentials


MAX_BYTES = 256 << 20
"""The largest body of a call that a data buffer reads."""
WINDOW_BYTES = 2 << 20
FRAME_BYTES = 1 << 20
IDLE_MS = 30_000
"""After which the connection to one of perhaps a thousand peers is given up."""
OPTIONS = [
    # a proxy in the environment, by which workers reach the Hub or a store, is none between hosts of a job
    ("grpc.enable_http_proxy", 0),
    # what may be under way in one call; gRPC's own estimate grows to 16 MiB each
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    # after a refused connection gRPC waits before it tries again; its default grows to two minutes
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # in spite of its name this is how long a connection may take to come about: a busy peer is not an absent one
    ("grpc.min_reconnect_backoff_ms", 5000),
]
STREAM_OPTIONS = [
    *OPTIONS,
    # a connection of its own: a message does not wait behind rows and weights
    ("grpc.use_local_subchannel_pool", 1),
    # the default of 16 KiB costs a header and a slice of memory for each
    ("grpc.http2.max_frame_size", FRAME_BYTES),
    ("grpc.client_idle_timeout_ms", IDLE_MS),
]
MESSAGES = 0
"""Number of the client for messages."""
STREAM_CONNECTIONS = stream_connections(os.cpu_count() or 1)
"""Connections to one peer for streams, as many as there are at the same time."""
RENEW_SECONDS = 2.0
HANDSHAKE_SECONDS = 2.0
"""How long finding out why a peer does not answer may take."""

_read_answer = msgspec.msgpack.Decoder(PeerAnswer)


class PeerConnection:
    """Calls may come from several threads; what goes wrong is raised as an error of ours that names the peer."""

    def __init__(
        self,
        host: Host,
        address_book: AddressBook,
        identity: Identity,
        life: str,
        clock: Callable[[], float] = time.monotonic,
        credentials: TlsCredentials | None = None,
    ) -> None:
        """credentials: for mutual TLS; None speaks plain text."""
        self.peer_name = f"the data buffer of host {host}"
        self._host = host
        self._address_book = address_book
        self._identity = identity
        self._own_life = life
        self._credentials = credentials
        self._life: str | None = None
        self._headers = headers_of(identity, host, life, None)
        self._lock = threading.Lock()
        self._clock = clock
        self._clients: dict[int, flight.FlightClient] = {}
        """By number: `MESSAGES`, and those of streams from 1 on."""
        self._streams = Counter[int]()
        """Streams under way on each client."""
        self._made = 0.0

    def expect(self, life: str) -> None:
        """Speak to this process only, and not to one that takes its place. Raises Refused if that has happened."""
        with self._lock:
            if self._life is None:
                self._life = life
                self._headers = headers_of(self._identity, self._host, self._own_life, life)
            if self._life != life:
                raise Refused(f"{self.peer_name} has restarted, and the rows it held are lost")

    def act(self, action: str, body: bytes, seconds: float) -> bytes:
        """Call an action; returns its one answer."""
        with self._errors(seconds):
            answers = self._open().do_action(flight.Action(action, sealed(body)), self._options(seconds))
            answer = b"".join(part.body.to_pybytes() for part in answers)
        return bytes(opened(answer, f"{self.peer_name}: an answer"))

    def stream(self, ticket: bytes, seconds: float, take: Take) -> None:
        """Hand out the record batches under a ticket, which may take up to `seconds` to the last."""
        with self._stream_client() as number:
            with self._errors(seconds):
                reader = self._open(number).do_get(flight.Ticket(sealed(ticket)), self._options(seconds))
            try:
                while (chunk := self._next(reader, seconds)) is not None:
                    take(chunk.data, b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes())
            except BaseException:  # also what `take` raises: the peer is not to send the rest
                reader.cancel()
                raise

    @contextmanager
    def _stream_client(self) -> Iterator[int]:
        """The client with the fewest streams: those at the same time are on connections of their own, as far as there
        are any, since one connection keeps one core busy."""
        with self._lock:
            number = min(range(1, STREAM_CONNECTIONS + 1), key=self._streams.__getitem__)
            self._streams[number] += 1
        try:
            yield number
        finally:
            with self._lock:
                self._streams[number] -= 1

    def _next(self, reader: flight.FlightStreamReader, seconds: float) -> flight.FlightStreamChunk | None:
        with self._errors(seconds), contextlib.suppress(StopIteration):
            return reader.read_chunk()
        return None

    def renew(self) -> None:
        """The peer does not answer: look its name up anew from time to time.

        gRPC asks for the address of a name that it could not find ever more seldom, down to every two minutes.
        """
        with self._lock:
            if self._clock() - self._made >= RENEW_SECONDS:
                self._clients.clear()

    def close(self) -> None:
        """Hang up, as soon as no answer is awaited any more; a call that still comes connects anew."""
        with self._lock:
            self._clients.clear()

    def _options(self, seconds: float) -> flight.FlightCallOptions:
        headers: Headers = self._headers
        return flight.FlightCallOptions(timeout=seconds, headers=headers)

    def _open(self, number: int = MESSAGES) -> flight.FlightClient:
        with self._lock:
            if number not in self._clients:
                address = self._address_book.find(self._host)
                if address is None:
                    raise Elsewhere(f"{self.peer_name} is not in the address book yet")
                self._clients[number] = self._client_to(address, OPTIONS if number == MESSAGES else STREAM_OPTIONS)
                self._made = self._clock()
            return self._clients[number]

    def _client_to(self, address: str, options: list[tuple[str, int]]) -> flight.FlightClient:
        if self._credentials is None:
            return flight.FlightClient(f"grpc+tcp://{address}", generic_options=options)
        return flight.FlightClient(f"grpc+tls://{address}", generic_options=options, **self._credentials.of_client())

    @contextmanager
    def _errors(self, seconds: float) -> Iterator[None]:
        """What goes wrong in the block as an error of ours; Elsewhere or Refused if somebody is there, but has another
        certificate than the peer should or does not take ours."""
        try:
            with errors_of(self.peer_name):
                yield
        except Away as error:
            if self._credentials is None or error.timed_out or (address := self._address_book.find(self._host)) is None:
                raise
            disagreement = self._credentials.disagreement(address, min(seconds, HANDSHAKE_SECONDS))
            if disagreement is None:
                raise
            kind, reason = disagreement
            raise kind(f"{self.peer_name} {reason}") from error


def ask_all(
    connections: Mapping[Host, PeerConnection], question: Question, seconds: float, threads: Threads = THREADS
) -> dict[Host, PeerAnswer | PeerLost]:
    """What each answers within `seconds`; PeerLost for those that do not, or whose answer is an error.

    Every peer gets a thread of its own: of many that hang, none keeps another from being asked.
    """
    if not connections:
        return {}
    body = encode(question)
    pool = threads.pool("questions", len(connections))
    futures = {host: pool.submit(_ask, connection, body, seconds) for host, connection in connections.items()}
    threads.wait(futures.values(), seconds)
    pool.shutdown(wait=False)
    return {host: _result_of(connections[host].peer_name, future, seconds) for host, future in futures.items()}


def _ask(connection: PeerConnection, body: bytes, seconds: float) -> PeerAnswer:
    try:
        data = connection.act("ask", body, seconds)
    except Damaged:  # messages are repeated by their link, streams by who fetches
        data = connection.act("ask", body, seconds)
    try:
        answer: PeerAnswer = _read_answer.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{connection.peer_name} gave {len(data):,} bytes that are not an answer: {error}") from error
    return answer


def _result_of(peer_name: str, future: Future[PeerAnswer], seconds: float) -> PeerAnswer | PeerLost:
    if not future.done():
        return PeerLost(f"{peer_name} did not answer in {seconds:.1f} s")
    error = future.exception()
    if error is None:
        return future.result()
    return error if isinstance(error, PeerLost) else PeerLost(f"{peer_name}: {error}")
