"""The way to one peer: a Flight client that is made when it is needed and shows who we are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.flight as flight

from rljob_worker.databuffer.links.book import AddressBook
from rljob_worker.databuffer.links.faults import Away, Refused, errors_of
from rljob_worker.databuffer.links.fencing import Headers, Identity, headers_of
from rljob_worker.databuffer.routes.hosts import Host

MAX_BYTES = 256 << 20
"""The largest body of a call that a data buffer reads."""
WINDOW_BYTES = 2 << 20
OPTIONS = [
    # what may be under way in one stream: bounds the memory of many streams; gRPC's own estimate grows to 16 MiB each
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    # after a refused connection gRPC waits before it tries again; its default grows to two minutes
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # in spite of its name this is how long a connection may take to come about: a busy peer is not an absent one
    ("grpc.min_reconnect_backoff_ms", 5000),
]
RENEW_SECONDS = 2.0


class Connection:
    """Calls may come from several threads; what goes wrong is raised as an error of ours that names the peer."""

    def __init__(
        self, host: Host, book: AddressBook, identity: Identity, life: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.whom = f"the data buffer of host {host}"
        self._host = host
        self._book = book
        self._identity = identity
        self._own_life = life
        self._life: str | None = None
        self._headers = headers_of(identity, life, None)
        self._lock = threading.Lock()
        self._clock = clock
        self._client: flight.FlightClient | None = None
        self._made = 0.0

    def expect(self, life: str) -> None:
        """Speak to this process only, and not to one that takes its place. Raises Refused if that has happened."""
        with self._lock:
            if self._life is None:
                self._life = life
                self._headers = headers_of(self._identity, self._own_life, life)
            if self._life != life:
                raise Refused(f"{self.whom} has restarted, and the rows it held are lost")

    def act(self, action: str, body: bytes, seconds: float) -> bytes:
        """Call an action; returns its one answer."""
        with errors_of(self.whom):
            answers = self._open().do_action(flight.Action(action, body), self._options(seconds))
            return b"".join(answer.body.to_pybytes() for answer in answers)

    def stream(self, ticket: bytes, seconds: float) -> Iterator[pa.RecordBatch]:
        """Record batches, which may take up to `seconds` to the last. Nothing is asked before the first is."""
        with errors_of(self.whom):
            for chunk in self._open().do_get(flight.Ticket(ticket), self._options(seconds)):
                yield chunk.data

    def renew(self) -> None:
        """The peer does not answer: look its name up anew from time to time.

        gRPC asks for the address of a name that it could not find ever more seldom, down to every two minutes.
        """
        with self._lock:
            if self._clock() - self._made >= RENEW_SECONDS:
                self._client = None

    def close(self) -> None:
        """Hang up, as soon as no stream is read any more."""
        with self._lock:
            self._client = None

    def _options(self, seconds: float) -> flight.FlightCallOptions:
        headers: Headers = self._headers
        return flight.FlightCallOptions(timeout=seconds, headers=headers)

    def _open(self) -> flight.FlightClient:
        with self._lock:
            if self._client is None:
                address = self._book.find(self._host)
                if address is None:
                    raise Away(f"{self.whom} is not in the address book yet")
                self._client = flight.FlightClient(f"grpc+tcp://{address}", generic_options=OPTIONS)
                self._made = self._clock()
            return self._client
