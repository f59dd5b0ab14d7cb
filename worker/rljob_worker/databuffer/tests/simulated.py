"""Data buffers of a whole job without threads and sockets: what each does is an event; the test says in which order.

Messages of one host to another stay in order, as links promise; everything else may happen whenever it likes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rljob_api.planning.plan import Plan
from rljob_worker.batch import Batch
from rljob_worker.databuffer.protocol.peer_side import Down, PeerMessage, RowsOffered, RowsTaken, RowsTicket, Up
from rljob_worker.databuffer.protocol.streams import Take
from rljob_worker.databuffer.protocol.worker_side import NotYet, ReserveRows, Room
from rljob_worker.databuffer.pull.consuming import Consuming, header_from
from rljob_worker.databuffer.pull.edges import Edges, EdgeStep, Share
from rljob_worker.databuffer.pull.producing import Producing, layout_topic
from rljob_worker.databuffer.pull.transfer import Patience
from rljob_worker.databuffer.routes.assignment import merge_layouts
from rljob_worker.databuffer.routes.hosts import Host, Worker
from rljob_worker.databuffer.routes.job_tree import JobTree
from rljob_worker.databuffer.routes.stage_route import stage_routes
from rljob_worker.databuffer.rows import segment, stream
from rljob_worker.databuffer.store.arena import Allocator
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.store.places import start_of_spill
from rljob_worker.databuffer.store.segments import Segment, Segments
from rljob_worker.databuffer.tree.tree import Told, Topic, Tree
from rljob_worker.errors import PeerLost

Event = Callable[[], None]


@dataclass
class Job:
    """All hosts of a plan and what is still to happen."""

    plan: Plan
    capacity: int = 1 << 20
    spill: int = 0
    seed: int = 0
    fan_out: int = 2
    streams_that_break: int = 0
    """So many streams end before their last batch, whichever are asked for first."""
    few_bytes: int = 0
    """So few travel with their offer."""
    events: list[Event] = field(default_factory=list)
    post: dict[tuple[Host, Host], deque[PeerMessage]] = field(default_factory=dict)
    delivered: list[tuple[Host, Host, PeerMessage]] = field(default_factory=list)
    streamed: list[tuple[Host, Host]] = field(default_factory=list)
    small: list[bool] = field(default_factory=list)
    """Of all work that may be done where it arises."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.shape = JobTree.of(self.plan, self.fan_out)
        self.hosts = {host: SimulatedHost(self, host) for host in map(self.shape.host, range(self.shape.size))}

    def host_of(self, worker: Worker) -> SimulatedHost:
        return self.hosts[Host(worker.group, worker.rank // self.plan.group(worker.group).workers_per_host)]

    def put(self, worker: Worker, step: int, edge: str, batch: Batch) -> bool:
        """Whether there was room."""
        return self.host_of(worker).put(worker, step, edge, batch)

    def want(self, worker: Worker, step: int, edge: str) -> tuple[EdgeStep, Share]:
        return self.host_of(worker).want(worker, step, edge)

    def get(self, worker: Worker, step: int, edge: str) -> Batch | None:
        """The rows of a worker if they are there."""
        return self.host_of(worker).get(worker, step, edge)

    def go_on(self, limit: int | None = None) -> None:
        """Until nothing is left to happen, or for so many events."""
        done = 0
        while (self.events or any(self.post.values())) and done != limit:
            pairs = sorted(pair for pair, waiting in self.post.items() if waiting)
            choice = self.random.randrange(len(self.events) + len(pairs))
            if choice < len(self.events):
                self.events.pop(choice)()
            else:
                self._deliver(*pairs[choice - len(self.events)])
            done += 1

    def _deliver(self, sender: Host, receiver: Host) -> None:
        message = self.post[sender, receiver].popleft()
        self.delivered.append((sender, receiver, message))
        self.hosts[receiver].hear(sender, message)


class NoFigures:
    """Counts nothing."""

    def put(self, edge: str, rows: int, num_bytes: int) -> None: ...


class SimulatedHost:
    """One data buffer; it is its own links, pools and timer."""

    def __init__(self, job: Job, here: Host) -> None:
        self.job, self.here = job, here
        disk = Allocator(job.spill, start_of_spill(job.capacity))
        self.monitor, self.segments = Monitor(), Segments(job.capacity, disk=disk)
        self.memory = np.zeros(disk.start + disk.capacity, np.uint8)
        self.edges = Edges(stage_routes(job.plan), here, job.plan.staleness + 2)
        self.consuming = Consuming(
            here,
            self.segments,
            self.memory,
            monitor=self.monitor,
            links=self,
            work=self,
            streams=self,
            later=lambda seconds, call: job.events.append(call),
            patience=Patience(1.0, 1e9),
            received=lambda edge, share: None,
        )
        self.tree = self._build_tree()
        self.producing = Producing(
            here,
            self.edges,
            self.segments,
            self.memory,
            monitor=self.monitor,
            links=self,
            work=self,
            gathers=self.tree.contribute,
            offers_here=lambda state, share: self.consuming.offered(state, share, here, None),
            metrics=NoFigures(),
            staleness=job.plan.staleness,
            few_bytes=job.few_bytes,
        )
        self.consuming.own = self.producing

    # ---- what a worker does

    def put(self, worker: Worker, step: int, edge: str, batch: Batch) -> bool:
        chosen = batch.select(self.edges.routes[edge].columns)
        contents = segment.contents_of(chosen)
        asked = ReserveRows(edge=edge, step=step, num_bytes=contents.num_bytes, waited=0.0, seconds=1e-9)
        room = self.producing.reserve(worker, asked)
        if isinstance(room, NotYet):
            return False
        assert isinstance(room, Room)
        segment.write(self.memory, room.offset, contents, chosen)
        self.producing.seal(worker, edge, step, contents)
        return True

    def want(self, worker: Worker, step: int, edge: str) -> tuple[EdgeStep, Share]:
        number = self.edges.routes[edge].share_of(worker)
        assert number is not None
        state = self.edges.at(edge, step)
        return state, self.consuming.want(state, number)

    def get(self, worker: Worker, step: int, edge: str) -> Batch | None:
        state, share = self.want(worker, step, edge)
        found: Segment | None = self.consuming.readable(state, share, worker.rank)
        if found is None or found.contents is None:
            return None
        rows = segment.views(self.memory, found.offset, found.contents).as_batch()
        return rows

    def release(self, worker: Worker, step: int, edge: str) -> None:
        number = self.edges.routes[edge].share_of(worker)
        assert number is not None
        self.consuming.release(self.edges.at(edge, step), number, worker.rank)

    # ---- links, pools, metrics

    def send(self, host: Host, *messages: PeerMessage) -> None:
        self.job.post.setdefault((self.here, host), deque()).extend(messages)

    def stream(self, host: Host, ticket: RowsTicket, seconds: float, take: Take) -> None:
        self.job.streamed.append((self.here, host))
        selections = self.job.hosts[host].producing.selections(ticket.edge, ticket.step, ticket.share)
        portions = stream.stream(selections, lambda seconds: None, 1 << 12)
        breaks, self.job.streams_that_break = self.job.streams_that_break > 0, max(0, self.job.streams_that_break - 1)
        for number, portion in enumerate(portions):
            if breaks and number == 0:
                raise PeerLost(f"the stream from {host} broke")
            take(portion)

    def submit(self, what: str, work: Event) -> None:
        self.job.events.append(work)

    def do(self, what: str, work: Event, *, is_small: bool) -> None:
        """At once or later, as it comes."""
        self.job.small.append(is_small)
        if self.job.random.random() < 0.5:
            work()
        else:
            self.submit(what, work)

    def hear(self, sender: Host, message: PeerMessage) -> None:
        if isinstance(message, RowsOffered):
            state = self.edges.at(message.edge, message.step)
            self.consuming.offered(state, message.share, sender, header_from(message), message.rows)
        elif isinstance(message, RowsTaken):
            self.producing.taken(sender, message)
        elif isinstance(message, Up):
            self.tree.hear_up(sender, message)
        elif isinstance(message, Down):
            self.tree.hear_down(sender, message)

    def _build_tree(self) -> Tree:
        topics, tells = list[Topic](), list[Told]()
        for name, route in self.edges.routes.items():
            if not route.needs_layouts:
                continue
            positions = sorted({self.job.shape.position(host) for host in route.producer_hosts})
            audience = sorted({self.job.shape.position(host) for host in route.hosts})
            topics.append(
                Topic(
                    layout_topic(name),
                    merge_layouts,
                    frozenset(route.parts_on(self.here)),
                    tuple(positions),
                    None,
                )
            )
            tells.append(
                Told(
                    layout_topic(name),
                    tuple(audience),
                    lambda step, payload, name=name: self._assigned(name, step, payload),  # type: ignore[misc]
                )
            )
        return Tree(
            self.here,
            self.job.shape,
            topics,
            tells,
            monitor=self.monitor,
            links=self,
            work=self,  # type: ignore[arg-type]
            kept_steps=3,
        )

    def _assigned(self, edge: str, step: int, payload: bytes) -> None:
        self.producing.assigned(edge, step, payload)
        self.consuming.assigned(self.edges.at(edge, step))


def held_bytes(job: Job) -> dict[str, int]:
    """What is left in memory and on disk, of hosts that hold anything."""
    used = {str(host): each.segments.memory.used + each.segments.disk.used for host, each in job.hosts.items()}
    return {host: num_bytes for host, num_bytes in used.items() if num_bytes}


def workers(group: str, ranks: Sequence[int] | range) -> list[Worker]:
    return [Worker(group, rank) for rank in ranks]
