"""Data buffers of other pods: where they are, one connection each, short retries, then PeerLost by name."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.flight as flight

from rljob_worker.databuffer.faults import from_flight, is_pending
from rljob_worker.databuffer.fencing import Badge, Identity
from rljob_worker.databuffer.hosts import Host
from rljob_worker.errors import InvalidJob, PeerLost

T = TypeVar("T")

CALL_SECONDS = 30.0
WINDOW_BYTES = 2 << 20
OPTIONS = [
    # what may be under way in one stream: bounds the memory of many streams; gRPC's own estimate grows to 16 MiB each
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    # after a refused connection gRPC waits before it tries again; its default grows to two minutes
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
]


class AddressBook:
    """Addresses by host: a DNS template, or a JSON file of the local supervisor that may appear late."""

    def __init__(self, peers: str, job: str) -> None:
        self._peers = peers
        self._job = job
        self._book: dict[str, list[str]] | None = None

    @property
    def lists_the_living(self) -> bool:
        """The supervisor writes its file when every data buffer serves; names in a DNS template say nothing."""
        return self._book is not None

    def find(self, host: Host) -> str | None:
        """host:port, or None while the file is not there yet."""
        if not self._peers.endswith(".json"):
            return self._peers.format(job=self._job, group=host.group, host=host.index)
        if self._book is None:
            self._book = self._read()
        return None if self._book is None else self._book[host.group][host.index]

    def _read(self) -> dict[str, list[str]] | None:
        try:
            book = json.loads(Path(self._peers).read_text())
        except FileNotFoundError:
            return None
        except json.JSONDecodeError as error:
            raise InvalidJob(
                f"the address book {self._peers} is not JSON: {error}; write it aside and rename"
            ) from error
        return {group: list(addresses) for group, addresses in book.items()}


class _AddressUnknown(flight.FlightUnavailableError):  # type: ignore[misc]
    """The address book is not there yet: as good as a host that does not answer yet."""


class Peers:
    """Calls to other data buffers.

    retry_seconds: how long a peer that has answered before may be away.
    start_seconds: the same for one that never has: pods do not start together.
    """

    def __init__(
        self, book: AddressBook, identity: Identity, *, retry_seconds: float = 5.0, start_seconds: float = 300.0
    ) -> None:
        self._book = book
        self._badge = Badge(identity)
        self._retry_seconds = retry_seconds
        self._start_seconds = start_seconds
        self._lock = threading.Lock()
        self._clients: dict[Host, flight.FlightClient] = {}
        self._seen: set[Host] = set()
        self._away_since: dict[Host, float] = {}

    def act(
        self,
        host: Host,
        action: str,
        body: dict[str, Any] | bytes,
        *,
        seconds: float = CALL_SECONDS,
        window_seconds: float | None = None,
    ) -> Any:
        """Call an action; returns what it answers, decoded from JSON, or None."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()

        def call(client: flight.FlightClient) -> Any:
            options = flight.FlightCallOptions(timeout=seconds)
            answers = [answer.body.to_pybytes() for answer in client.do_action(flight.Action(action, data), options)]
            return json.loads(answers[0]) if answers else None

        return self.attempt(host, call, window_seconds)

    def open(self, host: Host, ticket: bytes, seconds: float) -> flight.FlightStreamReader | None:
        """A stream of the peer, which may take up to `seconds`; None when the peer says that it has nothing yet."""

        def call(client: flight.FlightClient) -> flight.FlightStreamReader | None:
            try:
                return client.do_get(flight.Ticket(ticket), flight.FlightCallOptions(timeout=seconds + CALL_SECONDS))
            except flight.FlightServerError as error:
                if is_pending(error):
                    return None
                raise

        return self.attempt(host, call)

    def attempt(self, host: Host, call: Callable[[flight.FlightClient], T], window_seconds: float | None = None) -> T:
        """`call` with the peer's client, again while it is away, until the window after the first failure closes."""
        first_failure: float | None = None
        while True:
            try:
                answer = call(self._client(host))
                self._seen.add(host)
                return answer
            except (flight.FlightUnavailableError, flight.FlightTimedOutError) as error:
                now = time.monotonic()
                first_failure = now if first_failure is None else first_failure
                if now - first_failure >= (self._window(host) if window_seconds is None else window_seconds):
                    raise from_flight(error, f"the data buffer of host {host}") from error
            except flight.FlightError as error:
                raise from_flight(error, f"the data buffer of host {host}") from error
            time.sleep(0.05)

    def check(self, host: Host) -> None:
        """One quick call to a peer that we only wait for; PeerLost once it has been away for longer than its window."""
        try:
            self.act(host, "ping", {}, seconds=5.0, window_seconds=0.0)
            self._away_since.pop(host, None)
        except PeerLost:
            since = self._away_since.setdefault(host, time.monotonic())
            if time.monotonic() - since >= self._window(host):
                raise

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def _window(self, host: Host) -> float:
        return self._retry_seconds if host in self._seen or self._book.lists_the_living else self._start_seconds

    def _client(self, host: Host) -> flight.FlightClient:
        with self._lock:
            if host not in self._clients:
                address = self._book.find(host)
                if address is None:
                    raise _AddressUnknown(f"the address of host {host} is not in the address book yet")
                self._clients[host] = flight.FlightClient(
                    f"grpc+tcp://{address}", middleware=[self._badge], generic_options=OPTIONS
                )
            return self._clients[host]
