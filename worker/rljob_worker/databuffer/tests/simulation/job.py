"""A whole job: the pods of a plan, each with its real data buffer and the calls of its workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.flight as flight

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.quantity import parse_quantity
from rljob_worker.databuffer.links.faults import error_from, failed_by
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.links.links import LinkSettings
from rljob_worker.databuffer.protocol.codec import encode, opened, read_answer, read_request, read_ticket
from rljob_worker.databuffer.protocol.errors import Bug
from rljob_worker.databuffer.protocol.peer_side import ChunkOffered, ChunkTaken, Envelope, SourceClosed, WeightsMessage
from rljob_worker.databuffer.protocol.worker_answers import Failed, NotYet
from rljob_worker.databuffer.protocol.worker_calls import WaitingCall, WorkerCall
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.server.buffer import DataBuffer
from rljob_worker.databuffer.server.flight import PeerServer
from rljob_worker.databuffer.server.metrics import BufferMetrics
from rljob_worker.databuffer.server.worker_side import WorkerSide
from rljob_worker.databuffer.store.segment_files import SegmentFile, rounded
from rljob_worker.databuffer.tests.simulation.loop import Loop, SimulatedThreads
from rljob_worker.databuffer.tests.simulation.network import Headers, Network, Sent, SimulatedConnection
from rljob_worker.errors import RLJobError

TOKEN = "a-secret-of-the-job"


class Book:
    """The address book of one host, which appears at a time."""

    def __init__(self, loop: Loop, since: float, is_file: bool) -> None:
        self._loop, self._since, self._is_file = loop, since, is_file

    @property
    def is_there(self) -> bool:
        return self._loop.now >= self._since

    @property
    def lists_the_living(self) -> bool:
        return self._is_file and self.is_there

    def find(self, host: Host) -> str | None:
        return f"{host}:1" if self.is_there else None


class Portless(flight.FlightServerBase):  # type: ignore[misc]
    """In the place of the base class of a server."""

    def __init__(self, location: str, middleware: Mapping[str, Any]) -> None:
        (self.gate,) = middleware.values()


class SimulatedServer(PeerServer, Portless):
    """The real one, except its port."""

    def call(self, headers: Headers) -> Any:
        """The context of a call. Raises what the gate raises."""
        caller = self.gate.start_call(None, headers)
        return SimpleNamespace(get_middleware=lambda name: caller)


class Pod:
    """A host: its data buffer, as the network and its workers see it."""

    def __init__(self, job: SimulatedJob, host: Host, life: str) -> None:
        self.host, self.is_dead, self.frozen_until = host, False, 0.0
        self.first_version = 0
        """Version of weights that it hears of first: before, it is taken to be not there yet."""
        self._heard_sources: set[int] = set()
        self._job, self.loop = job, job.loop
        plan = job.plan
        self._identity = Identity(TOKEN, 1, job.plan_hash, host.group, host.index)
        places = [SegmentFile(Path(f"{life}-of-{host}"), size) for size in job.sizes]
        self.memory = np.zeros(sum(rounded(place.num_bytes) for place in places), np.uint8)
        links = LinkSettings(
            address_book=job.address_book(host),
            identity=self._identity,
            retry_seconds=job.retry_seconds,
            start_seconds=job.start_seconds,
            threads=SimulatedThreads(self.loop, self),
            connects=partial(SimulatedConnection, job.network, self),
        )
        self.buffer = DataBuffer(plan, places, self.memory, BufferMetrics(), links, fan_out=job.fan_out)
        weights = self.buffer.weights
        weights.announced = partial(self._hear_weights, weights.announced)  # type: ignore[method-assign]
        side = SimpleNamespace(
            take=self._take, answer=self.buffer.peer_side.answer, stream=self.buffer.peer_side.stream
        )
        self._server = SimulatedServer("", self._identity, self.buffer.life, plan.groups, side)
        self._answers = WorkerSide(self.buffer)
        self.loop.spawn(self.buffer.start, self, self.loop.moment())

    # ---- for peers

    def _take(self, sender: Host, life: str, envelope: Envelope) -> str:
        self._job.envelopes.append((sender, self.host, envelope))
        return self.buffer.peer_side.take(sender, life, envelope)

    def _hear_weights(
        self, announced: Callable[[Host, WeightsMessage], None], sender: Host, message: WeightsMessage
    ) -> None:
        """Chunks of a version before the first one are given up, so that nobody waits for this host to take them."""
        is_sent = isinstance(message, ChunkOffered | SourceClosed)
        if is_sent and message.version >= self.first_version:
            self._heard_sources.add(message.source)
        if not is_sent or message.source in self._heard_sources:
            announced(sender, message)
        elif isinstance(message, ChunkOffered):
            taken = ChunkTaken(message.edge, message.version, message.source, message.index)
            self.buffer.links.send(sender, taken)

    def act(self, action: str, body: bytes, headers: Headers) -> bytes:
        (answer,) = self._server.do_action(self._server.call(headers), flight.Action(action, body))
        return bytes(answer.to_pybytes())

    def stream(self, ticket: bytes, headers: Headers) -> Iterator[Sent | Failed | flight.FlightError]:
        try:
            self._server.call(headers)
            result = self.buffer.peer_side.stream(read_ticket(opened(ticket, "a ticket")))
            for record, checksum in result.records:
                yield result.schema, record.serialize().to_pybytes(), checksum
        except flight.FlightUnauthorizedError as error:
            yield error
        except RLJobError as error:
            yield failed_by(error)
        except Exception as error:
            yield failed_by(Bug(f"a stream: {error!r}"))

    # ---- for workers

    def answer(self, worker: WorkerId, request: WorkerCall) -> Any:
        """What a worker is told, as over its socket."""
        self.loop.sleep(self.loop.moment(), self)
        caller = Identity(TOKEN, 1, self._identity.plan_hash, self.host.group, self.host.index, worker.rank)
        try:
            body = encode(self._answers(caller, read_request(encode(request))))
        except RLJobError as error:
            body = encode(failed_by(error))
        except Exception as error:
            body = encode(failed_by(Bug(f"a request: {error!r}")))
        return read_answer(body)


class Own:
    """A worker's calls to its own data buffer."""

    def __init__(self, pod: Pod, worker: WorkerId) -> None:
        self._pod, self._worker = pod, worker

    def call(self, request: WorkerCall) -> Any:
        answer = self._pod.answer(self._worker, request)
        if isinstance(answer, Failed):
            raise error_from(answer)
        return answer

    def poll(self, request: Callable[[float], WaitingCall], seconds: float) -> Any:
        start = self._pod.loop.now
        while True:
            answer = self.call(request(self._pod.loop.now - start))
            if not isinstance(answer, NotYet):
                return answer


class SimulatedJob:
    """All pods."""

    def __init__(
        self,
        plan: Plan,
        seed: int | str,
        *,
        late_books: Mapping[Host, float] | None = None,
        are_books_files: bool = False,
        retry_seconds: float = 5.0,
        start_seconds: float = 15.0,
        sizes: Sequence[int] | None = None,
        fan_out: int = 2,
    ) -> None:
        """late_books: seconds after which the address book of a host appears. sizes: bytes of the arena and of the
        spill file, if not what the plan says."""
        self.plan, self.plan_hash = plan, plan.hash()
        self.loop = Loop(Random(seed))
        self.network = Network(self.loop)
        self.retry_seconds, self.start_seconds = retry_seconds, start_seconds
        self._late_books, self._are_books_files = late_books or {}, are_books_files
        self.sizes, self.fan_out = sizes or [parse_quantity(plan.spec.data_buffer.memory)], fan_out
        self.envelopes: list[tuple[Host, Host, Envelope]] = []
        """Sender, receiver, and what came."""
        self.started: Callable[[Host], None] = lambda host: None
        """Hears of pods that start later, in the place of others."""
        self._lives = itertools.count(1)
        self.pods: dict[Host, Pod] = {}
        self.assigned: dict[tuple[str, int], Any] = {}
        """Share of every row, by edge and step."""
        for group in plan.groups:
            for index in range(group.replicas):
                self._start(Host(group.name, index))

    def restart(self, host: Host) -> None:
        """A new pod in the place of one that has ended."""
        self._start(host)
        self.started(host)

    def _start(self, host: Host) -> None:
        self.pods[host] = self.network.peers[host] = Pod(self, host, f"life-{next(self._lives)}")

    def kill(self, host: Host, *, silently: bool) -> None:
        """A pod ends; nothing answers any more, or (silently) nobody says that nothing is there."""
        self.pods[host].is_dead = True
        if not silently:
            del self.network.peers[host]

    def end(self, pod: Pod) -> None:
        """Its workers are done: its data buffer says so and ends."""

        def close() -> None:
            pod.buffer.close()
            if self.network.peers.get(pod.host) is pod:
                del self.network.peers[pod.host]

        self.loop.spawn(close, pod, self.loop.moment())

    def pod_of(self, worker: WorkerId) -> Pod:
        return self.pods[Host(worker.group, worker.rank // self.plan.group(worker.group).workers_per_host)]

    def address_book(self, host: Host) -> Any:
        return Book(self.loop, self.loop.now + self._late_books.get(host, 0.0), self._are_books_files)
