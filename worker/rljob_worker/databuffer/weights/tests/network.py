"""A job's data buffers in one thread: messages, fetches, timers and calls of workers are events, drawn one by one."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random

import numpy as np
import pyarrow as pa

from rljob_worker.databuffer.protocol.peer_side import (
    ChunkOffered,
    ChunkTaken,
    ChunkTicket,
    PeerMessage,
    SourceClosed,
    Take,
)
from rljob_worker.databuffer.protocol.worker_answers import ChunkLocation, Complete, NotYet, Reservation, WorkerReply
from rljob_worker.databuffer.protocol.worker_calls import (
    CloseVersion,
    NextChunk,
    OpenVersion,
    ReleaseChunk,
    ReleaseVersion,
    ReserveChunk,
    SealChunk,
    SkipVersion,
)
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.routes.tests.test_weights_route import plan
from rljob_worker.databuffer.routes.weights_route import WeightsRoutes
from rljob_worker.databuffer.rows.byte_stream import Bytes, chunk_checksum, stream_of
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.weights.weights import Weights
from rljob_worker.databuffer.work import Job
from rljob_worker.errors import PeerLost

EDGE = "weights/actor"
PATIENCE = {"waited": 0.0, "seconds": 1000.0}


@cache
def routes_of(
    sources: tuple[int, int] = (1, 2), targets: tuple[int, int] = (4, 2), memory: str = "4Mi", staleness: int = 0
) -> WeightsRoutes:
    """One model from group `train` to group `rollout`; each (hosts, workers per host)."""
    return WeightsRoutes.of(plan(sources, targets, memory, staleness))


def hosts_of(routes: WeightsRoutes) -> list[Host]:
    route = routes.by_edge[EDGE]
    targets = [Host(group.name, i) for group in route.targets for i in range(group.replicas)]
    return sorted({source.host for source in route.sources}) + targets


def contents(source: int, version: int, index: int) -> bytes:
    """What a chunk holds in tests: its name, some number of times."""
    return f"{source}/{version}/{index};".encode() * (1 + (source + index) % 3)


class Figures:
    """What one data buffer counted, by edge."""

    def __init__(self) -> None:
        self.sent_bytes: defaultdict[str, int] = defaultdict(int)
        self.fetched_bytes: defaultdict[str, int] = defaultdict(int)

    def put(self, edge: str, rows: int, num_bytes: int) -> None:
        self.sent_bytes[edge] += num_bytes

    def got(self, edge: str, timing: Mapping[str, float], remote_bytes: int) -> None:
        self.fetched_bytes[edge] += remote_bytes


@dataclass
class Network:
    """All hosts. `break_streams` and `damage_streams`: fractions of the streams to which that happens."""

    routes: WeightsRoutes
    random: Random = field(default_factory=lambda: Random(0))
    break_streams: float = 0.0
    damage_streams: float = 0.0
    most_faults: int = 2
    """Of one chunk on its way to one host."""
    refuses: PeerLost | None = None
    """What streams are refused with."""
    first_slot: int = 0
    monitor: Callable[[], Monitor] = Monitor
    held_seconds: float = 0.0
    retry_seconds: float = 1e9
    """By a clock that goes on with every pause of anybody."""

    def __post_init__(self) -> None:
        self.messages: dict[tuple[Host, Host], deque[PeerMessage]] = defaultdict(deque)
        self.jobs: list[Job] = []
        self.timers: list[Job] = []
        self.tickets: list[tuple[Host, Host, ChunkTicket]] = []
        self.seconds: list[float] = []
        self.pauses: list[float] = []
        self.now = 0.0
        self.absent: dict[tuple[Host, int], int] = {}
        """(host, source) -> the version that it hears of first: an offerer of older chunks hears that it has taken
        them."""
        self.breaks: list[tuple[ChunkTicket, int]] = []
        self.faults: dict[tuple[Host, ChunkTicket], int] = defaultdict(int)
        self.buffers: dict[Host, Weights] = {}
        self.figures: dict[Host, Figures] = {}
        self.memories: dict[Host, Bytes] = {}
        for host in hosts_of(self.routes):
            self.memories[host] = np.zeros(self.first_slot + self.routes.num_bytes(host), np.uint8)
            self.figures[host] = Figures()
            self.buffers[host] = Weights(
                host,
                self.routes,
                self.memories[host],
                monitor=self.monitor(),
                links=_Links(self, host),
                jobs=self,
                later=self,
                last_words=lambda worker, host: "last said: stage update",
                metrics=self.figures[host],
                retry_seconds=self.retry_seconds,
                clock=lambda: self.now,
                first_slot=self.first_slot,
                held_seconds=self.held_seconds,
            )

    # ---- what a data buffer works with

    def submit(self, what: str, job: Job) -> None:
        self.jobs.append(job)

    def after(self, seconds: float, call: Job) -> None:
        self.pauses.append(seconds)

        def ring() -> None:
            self.now += seconds
            call()

        self.timers.append(ring)

    def records(self, reader: Host, host: Host, ticket: ChunkTicket) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        self.tickets.append((reader, host, ticket))
        if self.refuses is not None:
            raise self.refuses
        data = self.buffers[host].offered(ticket)
        fault = self.random.random() if self.faults[reader, ticket] < self.most_faults else 1.0
        if fault < self.break_streams:
            self.faults[reader, ticket] += 1
            self.breaks.append((ticket, self.slot(reader, ticket)))
            yield from stream_of(data[: len(data) // 2]).records
            raise PeerLost("the stream broke")
        if fault < self.break_streams + self.damage_streams:
            self.faults[reader, ticket] += 1
            data = data.copy()
            data[-1] ^= 1
        yield from stream_of(data).records

    def slot(self, host: Host, ticket: ChunkTicket) -> int:
        """Where a host keeps a chunk."""
        tree = self.buffers[host].edge(EDGE).tree(ticket.source)
        return next(chunk.offset for chunk in tree.chunks if chunk.key == (ticket.version, ticket.index))

    # ---- events

    def events(self) -> list[Callable[[], object]]:
        """What can happen next, besides what workers ask."""
        events: list[Callable[[], object]] = [
            partial(self._deliver, pair) for pair, waiting in self.messages.items() if waiting
        ]
        events += [partial(self._run, number) for number in range(len(self.jobs))]
        events += [partial(self._ring, number) for number in range(len(self.timers))]
        return events

    def settle(self) -> None:
        """Until nothing happens but by workers."""
        while events := self.events():
            self.random.choice(events)()

    def num_held(self, host: Host) -> int:
        """Slots of a host that are not free: it holds chunks in them, or its sources write."""
        edge = self.buffers[host].edge(EDGE)
        return sum(edge.tree(source.number).num_held for source in edge.route.sources_through(host))

    def _deliver(self, pair: tuple[Host, Host]) -> None:
        sender, receiver = pair
        message = self.messages[pair].popleft()
        if not isinstance(message, ChunkOffered | SourceClosed):
            self.buffers[receiver].announced(sender, message)
        elif message.version >= self.absent.get((receiver, message.source), 0):
            self.absent.pop((receiver, message.source), None)
            self.buffers[receiver].announced(sender, message)
        elif isinstance(message, ChunkOffered):
            taken = ChunkTaken(message.edge, message.version, message.source, message.index)
            self.messages[receiver, sender].append(taken)

    def _run(self, number: int) -> None:
        self.jobs.pop(number)()

    def _ring(self, number: int) -> None:
        self.timers.pop(number)()


@dataclass
class _Links:
    network: Network
    here: Host

    def send(self, host: Host, message: PeerMessage) -> None:
        self.network.messages[self.here, host].append(message)

    def stream(self, host: Host, ticket: ChunkTicket, seconds: float, take: Take) -> None:
        self.network.seconds.append(seconds)
        for record, checksum in self.network.records(self.here, host, ticket):
            take(record, checksum)


@dataclass
class Sender:
    """A source that sends versions of `num_chunks` chunks. `act` is one call; False when that was in vain."""

    network: Network
    number: int
    versions: Sequence[tuple[int, int]]
    """(version, chunks)."""
    num_sealed: int = 0
    is_open: bool = False
    room: int | None = None

    def __post_init__(self) -> None:
        source = self.network.routes.by_edge[EDGE].sources[self.number]
        self.worker, self.host = source.worker, source.host
        self.versions = list(self.versions)

    @property
    def is_done(self) -> bool:
        return not self.versions

    def act(self) -> bool:
        buffer = self.network.buffers[self.host]
        version, num_chunks = self.versions[0]
        if not self.is_open:
            self.release(version - self.network.routes.by_edge[EDGE].num_versions)
            buffer.open(self.worker, OpenVersion(edge=EDGE, version=version))
            self.is_open, self.num_sealed = True, 0
        elif self.num_sealed == num_chunks:
            buffer.close(self.worker, CloseVersion(edge=EDGE, version=version))
            self.is_open, self.versions = False, self.versions[1:]
        elif self.room is None:
            answer = buffer.reserve(self.worker, ReserveChunk(edge=EDGE, version=version, **PATIENCE))
            self.room = answer.offset if isinstance(answer, Reservation) else None
            return self.room is not None
        else:
            self._seal(version)
        return True

    def release(self, version: int) -> None:
        """It is not asked for any more."""
        self.network.buffers[self.host].release_version(self.worker, ReleaseVersion(edge=EDGE, version=version))

    def _seal(self, version: int) -> None:
        assert self.room is not None
        data = np.frombuffer(contents(self.number, version, self.num_sealed), np.uint8)
        table = b"table of " + data.tobytes()
        self.network.memories[self.host][self.room : self.room + len(data)] = data
        request = SealChunk(
            edge=EDGE,
            version=version,
            offset=self.room,
            num_bytes=len(data),
            table=table,
            checksum=chunk_checksum(data, table),
        )
        self.network.buffers[self.host].seal(self.worker, request)
        self.room = None
        self.num_sealed += 1


@dataclass
class Receiver:
    """A rank that reads some versions. `act` is one call; False when that was in vain."""

    network: Network
    rank: int
    host: Host
    versions: Sequence[tuple[int, int | None]]
    """(version, chunks after which it skips the rest, None to read all)."""
    had: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    completed: dict[int, int] = field(default_factory=dict)
    lease: ChunkLocation | None = None

    def __post_init__(self) -> None:
        self.worker = WorkerId(self.host.group, self.rank)
        self.versions = list(self.versions)

    @property
    def is_done(self) -> bool:
        return not self.versions

    def act(self) -> bool:
        buffer = self.network.buffers[self.host]
        version, patience = self.versions[0]
        if patience is not None and len(self.had[version]) >= patience:
            buffer.skip(self.worker, SkipVersion(edge=EDGE, version=version))
            self.lease, self.versions = None, self.versions[1:]
        elif self.lease is not None:
            self._check(self.lease)
            index, source = self.lease.index, self.lease.source
            buffer.release(self.worker, ReleaseChunk(edge=EDGE, version=version, source=source, index=index))
            self.lease = None
        else:
            return self._take(buffer.next(self.worker, NextChunk(edge=EDGE, version=version, **PATIENCE)))
        return True

    def _take(self, answer: WorkerReply) -> bool:
        version = self.versions[0][0]
        if isinstance(answer, Complete):
            self.completed[version] = answer.num_chunks
            self.versions = self.versions[1:]
        elif isinstance(answer, ChunkLocation):
            self.lease = answer
            self.had[version].append(self._check(answer))
        return not isinstance(answer, NotYet)

    def _check(self, chunk: ChunkLocation) -> bytes:
        """What lies in the slot; nobody writes there before the rank lets it go."""
        data = self.network.memories[self.host][chunk.offset : chunk.offset + chunk.num_bytes].tobytes()
        assert data == contents(chunk.source, self.versions[0][0], chunk.index)
        assert chunk.table == b"table of " + data
        return data


def run(network: Network, workers: Sequence[Sender | Receiver]) -> None:
    """Until all workers are done and nothing happens any more, in the order that `network.random` draws."""
    while True:
        asking = [worker for worker in workers if not worker.is_done]
        events = network.events() + [worker.act for worker in asking]
        if not events:
            return
        chosen = network.random.choice(events)
        if chosen() is False and not network.events():
            assert any(worker.act() for worker in asking), f"stuck: {[item for item in asking]}"
