"""The network under simulated data buffers: addresses, delays, losses, flipped bits. Calls are those of Flight."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight

from rljob_worker.databuffer.links.connection import PeerConnection
from rljob_worker.databuffer.links.faults import error_from, errors_of, from_flight, silent, too_late
from rljob_worker.databuffer.protocol.codec import sealed
from rljob_worker.databuffer.protocol.peer_side import Take
from rljob_worker.databuffer.protocol.worker_answers import Failed
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.tests.simulation.loop import Condition, Loop, Pause

FOREVER = float("inf")
Headers = Mapping[str, Sequence[str]]
Sent = tuple[pa.Schema, bytes, bytes]
"""A record batch as an IPC message, with its schema and its checksum."""


class Peer(Protocol):
    """A data buffer as the network sees it."""

    host: Host
    is_dead: bool
    frozen_until: float

    def act(self, action: str, body: bytes, headers: Headers) -> bytes: ...

    def stream(self, ticket: bytes, headers: Headers) -> Iterator[Sent | Failed | flight.FlightError]: ...


@dataclass(frozen=True)
class Loss:
    """What leaves `sources` for `targets` does not arrive; `is_late`: not before it is over."""

    sources: frozenset[Host]
    targets: frozenset[Host]
    start: float
    end: float = FOREVER
    is_late: bool = False

    def covers(self, source: Host, target: Host, when: float) -> bool:
        return source in self.sources and target in self.targets and self.start <= when < self.end


@dataclass(frozen=True)
class Swap:
    """The name of one host leads to the other, and the other way round."""

    one: Host
    other: Host
    start: float
    end: float = FOREVER

    def place(self, host: Host, when: float) -> Host:
        if host not in (self.one, self.other) or not self.start <= when < self.end:
            return host
        return self.other if host == self.one else self.one


@dataclass
class Flip:
    """One bit of the `number`-th body of a kind, from 0."""

    kind: str
    number: int
    where: float
    """Of its bits, from 0 to 1."""
    what: str = ""
    """Where it was, once it has been."""

    def of(self, body: bytes) -> bytes:
        bit = int(self.where * 8 * len(body))
        self.what = f"bit {bit} of {len(body)} bytes of {self.kind} {self.number}"
        flipped = bytearray(body)
        flipped[bit // 8] ^= 1 << bit % 8
        return bytes(flipped)


@dataclass
class Network:
    """Who is where, and what happens to what is sent."""

    loop: Loop
    peers: dict[Host, Peer] = field(default_factory=dict)
    """Who listens at the address of a host; nobody refuses connections."""
    losses: list[Loss] = field(default_factory=list)
    swaps: list[Swap] = field(default_factory=list)
    flips: list[Flip] = field(default_factory=list)
    breaks: float = 0.0
    """Fraction of streams that end early."""
    num_breaks: int = 0
    """The first streams, this many, end early."""
    streamed: list[tuple[Host, Host]] = field(default_factory=list)
    """Who asked for a stream, and whom."""
    seen: Counter[str] = field(default_factory=Counter)
    """Bodies by kind."""

    def place(self, address: str) -> Host:
        """Where a name leads to now."""
        group, _, index = address.partition(":")[0].rpartition("-")
        host = Host(group, int(index))
        for swap in self.swaps:
            host = swap.place(host, self.loop.now)
        return host

    def arrival(self, source: Host, target: Host, *, is_stream: bool = False) -> float | None:
        """When what leaves now arrives. A stream goes on where it was: what was lost is sent again."""
        when = self.loop.now + self.loop.moment()
        for loss in self.losses:
            if loss.covers(source, target, when):
                is_late = (loss.is_late or is_stream) and loss.end < FOREVER
                return loss.end + self.loop.moment() if is_late else None
        return when

    def is_broken(self) -> bool:
        """Whether the stream that begins now ends early."""
        if self.num_breaks:
            self.num_breaks -= 1
            return True
        return self.loop.random.random() < self.breaks

    def sent(self, kind: str, body: bytes) -> bytes:
        """What arrives of it."""
        if not body:
            return body
        number, self.seen[kind] = self.seen[kind], self.seen[kind] + 1
        for flip in self.flips:
            if (flip.kind, flip.number) == (kind, number):
                body = flip.of(body)
        return body

    def call(self, caller: Peer, place: Host, serve: Callable[[Peer], Any], seconds: float) -> Any:
        """What `serve` returns, run by the host at a place. Raises what Flight does."""
        pause = Pause(self.loop, caller)

        def back(place: Host, result: Any) -> None:
            arrival = self.arrival(place, caller.host)
            if arrival is not None:
                self.loop.at(arrival, lambda: pause.wake(result), caller)

        def run(peer: Peer) -> None:
            try:
                result = serve(peer)
            except flight.FlightError as error:
                result = error
            back(peer.host, result)

        def arrive() -> None:
            peer = self.peers.get(place)
            if peer is None:
                back(place, flight.FlightUnavailableError("connection refused"))
            else:
                self.loop.spawn(lambda: run(peer), peer)

        arrival = self.arrival(caller.host, place)
        if arrival is not None:
            self.loop.at(arrival, arrive)
        result = pause.wait(seconds)
        if result is None:
            raise flight.FlightTimedOutError("Deadline Exceeded")
        if isinstance(result, Exception):
            raise result
        return result


class Client:
    """In the place of a Flight client: connected to the server that has the address when it is made."""

    def __init__(self, network: Network, caller: Peer, address: str) -> None:
        self._network, self._caller = network, caller
        self.place = network.place(address)

    def do_action(self, action: flight.Action, options: tuple[float, Headers]) -> list[Any]:
        seconds, headers = options
        name, body = action.type, self._network.sent(action.type, action.body.to_pybytes())
        result = self._network.call(self._caller, self.place, lambda peer: peer.act(name, body, headers), seconds)
        return [SimpleNamespace(body=pa.py_buffer(self._network.sent(f"answer to {name}", result)))]


class SimulatedConnection(PeerConnection):
    """The real one, over the simulated network."""

    def __init__(self, network: Network, caller: Peer, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._network, self._caller = network, caller

    def stream(self, ticket: bytes, seconds: float, take: Take) -> None:
        client = self._open()
        self._network.streamed.append((self._caller.host, client.place))
        asked = self._network.sent("ticket", sealed(ticket))
        _Stream(self._network, self._caller, self.peer_name, seconds).read(client.place, asked, self._shown(), take)

    def _client_to(self, address: str, options: object) -> Any:
        return Client(self._network, self._caller, address)

    def _options(self, seconds: float) -> Any:
        return seconds, self._shown()

    def _shown(self) -> Headers:
        return {name.decode(): [value.decode()] for name, value in self._headers}


class _Stream:
    """Record batches on their way from one data buffer to another."""

    def __init__(self, network: Network, caller: Peer, whom: str, seconds: float) -> None:
        self._network, self._loop, self._caller, self._peer_name = network, network.loop, caller, whom
        self._end, self._seconds = self._loop.now + seconds, seconds
        self._came: deque[Any] = deque()
        self._changed = Condition(self._loop, caller)
        self._last = 0.0

    def read(self, place: Host, ticket: bytes, headers: Headers, take: Take) -> None:
        arrival = self._network.arrival(self._caller.host, place, is_stream=True)
        if arrival is not None:
            self._loop.at(arrival, lambda: self._arrive(place, ticket, headers))
        while (result := self._next()) is not None:
            if isinstance(result, Exception):
                raise result
            schema, message, checksum = result
            with errors_of(self._peer_name):
                schema = pa.ipc.read_schema(pa.py_buffer(self._network.sent("schema", schema.serialize().to_pybytes())))
                record = pa.ipc.read_record_batch(pa.py_buffer(self._network.sent("record", message)), schema)
            take(record, self._network.sent("checksum", checksum))

    def _next(self) -> Any:
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._came), self._end - self._loop.now):
                raise too_late(self._peer_name, f"{self._seconds:g} s")
            return self._came.popleft()

    def _arrive(self, place: Host, ticket: bytes, headers: Headers) -> None:
        peer = self._network.peers.get(place)
        if peer is None:
            self._back(place, silent(self._peer_name, "connection refused"))
        else:
            self._loop.spawn(lambda: self._give(peer, ticket, headers), peer)

    def _give(self, peer: Peer, ticket: bytes, headers: Headers) -> None:
        breaks = self._network.is_broken()
        for sent in peer.stream(ticket, headers):
            if breaks:
                self._back(peer.host, silent(self._peer_name, "it hung up"))
                return
            if isinstance(sent, (Failed, flight.FlightError)):
                self._back(
                    peer.host, error_from(sent) if isinstance(sent, Failed) else from_flight(sent, self._peer_name)
                )
                return
            self._back(peer.host, sent)
            self._loop.sleep(self._loop.moment(), peer)
        self._back(peer.host, None)

    def _back(self, place: Host, result: Any) -> None:
        """What is said on one connection arrives in order."""
        arrival = self._network.arrival(place, self._caller.host, is_stream=True)
        if arrival is not None:
            self._last = max(self._last, arrival) + 1e-9
            self._loop.at(self._last, lambda: self._come(result), self._caller)

    def _come(self, result: Any) -> None:
        with self._changed:
            self._came.append(result)
            self._changed.notify()
