"""One data buffer: everything it consists of, put together in the one place that owns it all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from rljob_api.pipeline.buffer_capacity import capacity_of, layouts_of
from rljob_api.pipeline.resolution import Resolution, assign_groups
from rljob_api.planning.plan import Plan
from rljob_api.planning.weights.trees import STREAM_THREADS
from rljob_api.planning.weights.versions import generating_version, policy_version
from rljob_worker.databuffer.leases.deliveries import Deliveries
from rljob_worker.databuffer.leases.leases import Leases
from rljob_worker.databuffer.leases.ledger import merge_outcomes
from rljob_worker.databuffer.leases.owner import LeaseOwner
from rljob_worker.databuffer.links.faults import broken_by
from rljob_worker.databuffer.links.link import PING_SECONDS
from rljob_worker.databuffer.links.links import Links, LinkSettings
from rljob_worker.databuffer.protocol.errors import Away
from rljob_worker.databuffer.protocol.peer_side import Departure, WhatTheyPosted
from rljob_worker.databuffer.pull.consuming import Consuming
from rljob_worker.databuffer.pull.edges import ConsumerShare, Edges, EdgeStep
from rljob_worker.databuffer.pull.producing import Producing, layout_topic
from rljob_worker.databuffer.pull.transfer import TransferTimeouts
from rljob_worker.databuffer.routes.assignment import merge_layouts
from rljob_worker.databuffer.routes.guest_route import VALIDATION_PIECES, GuestRoute, LeaseId, delivered_topic
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.routes.job_tree import OPENING, REPORT, VALIDATION, VERDICT, JobTree
from rljob_worker.databuffer.routes.lease_route import LeaseRoute, lease_routes, outcomes_topic
from rljob_worker.databuffer.routes.stage_route import StageRoute, stage_routes
from rljob_worker.databuffer.routes.weights_route import WeightsRoutes
from rljob_worker.databuffer.rows.segment import Bytes
from rljob_worker.databuffer.server.metrics import BufferMetrics
from rljob_worker.databuffer.server.peer_side import PeerSide
from rljob_worker.databuffer.server.stragglers import StragglerReport, WorkerStatuses
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.store.segment_files import Allocator, SegmentFile
from rljob_worker.databuffer.store.segments import Segments
from rljob_worker.databuffer.tree import Announcement, MessageTree, Topic
from rljob_worker.databuffer.weights.guest_parents import GuestParents
from rljob_worker.databuffer.weights.weights import Weights
from rljob_worker.databuffer.work import Timer, Work
from rljob_worker.errors import PeerLost, RLJobError
from rljob_worker.metrics.report import merge_reports

NUM_WORK_THREADS = 4


class DataBuffer:
    """Its state, under one lock; its pools; its links."""

    def __init__(
        self,
        plan: Plan,
        places: Sequence[SegmentFile],
        memory: Bytes,
        metrics: BufferMetrics,
        settings: LinkSettings,
        *,
        fan_out: int,
    ) -> None:
        threads, retry_seconds = settings.threads, settings.retry_seconds
        self.plan, self.here = plan, settings.identity.pod
        self.places, self.memory, self.metrics = places, memory, metrics
        self.life = places[0].path.name
        self.shape = JobTree.of(plan, fan_out)
        self.monitor, self.worker_statuses = Monitor(threads), WorkerStatuses(threads.clock)
        self._clock, self._timer = threads.clock, Timer(self.break_down, threads)
        self._work = Work("work", NUM_WORK_THREADS, self.break_down, threads)
        self._streams = Work("stream", STREAM_THREADS, self.break_down, threads)
        self.guest_route = GuestRoute.of(plan)
        self.links = self._build_links(settings)
        self.weights_routes = WeightsRoutes.of(plan)
        weights_bytes = self.weights_routes.num_bytes(self.here)
        self.segments = Segments.of(places, weights_bytes, self._clock, metrics.spilled)
        self.edges = Edges(stage_routes(plan), self.here, plan.staleness + 2)
        self.consuming = self._build_consuming(retry_seconds)
        self.leases = Leases(
            self.here, lease_routes(plan), monitor=self.monitor, links=self.links, staleness=plan.staleness
        )
        self.tree = self._build_tree()
        self.producing = self._build_producing()
        self.consuming.own = self.producing
        self.weights = self._build_weights(retry_seconds)
        self.guest_parents = GuestParents()
        self.lease_owner = self._build_lease_owner(retry_seconds)
        self.peer_side = self._build_peer_side()
        self.lateness = StragglerReport(self.here, self.shape, self.links, self.peer_side.answer)
        metrics.watch("rows", lambda: self._used_bytes(self.segments.memory), self.segments.memory.capacity)
        if weights_bytes:
            metrics.watch("weights", self._weights_bytes, weights_bytes)
        metrics.watch_disk(lambda: self._used_bytes(self.segments.disk), self.segments.disk.capacity)

    def start(self) -> None:
        """Once the servers are up: look after the neighbours in the tree."""
        self.links.watch(self.shape.neighbours(self.here))

    def close(self) -> None:
        """Tell everybody we spoke with that our silence means nothing, or what broke us; start no more work."""
        cause = self.monitor.cause
        last = [Departure()] if cause is None else [broken_by(cause), Departure()]
        for host in self.links.peers:
            self.links.send(host, *last)
        self.links.flush(0.5)
        self.monitor.break_down(Away("this data buffer is shutting down"))  # for a peer that is a silence
        for part in (self._work, self._streams, self._timer, self.links):
            part.close()

    def break_down(self, cause: RLJobError) -> None:
        """The data plane cannot go on, here and everywhere: the first cause is the answer to every request from now
        on. The neighbours in the tree are notified at once, a peer that was given up with its next call."""
        if isinstance(cause, Away):  # an answer that would be waited for
            cause = PeerLost(*cause.args)
        if self.monitor.break_down(cause):
            for host in self.shape.neighbours(self.here):
                self.links.send(host, broken_by(cause))

    def lose_guest(self, guest: Host, error: PeerLost | None) -> None:
        """A guest is gone, by an error or because it said so: what it had is given to others."""
        self.weights.forget(guest)
        with self.monitor.change():
            self.guest_parents.lose(guest)
        if self.lease_owner is not None:
            self.lease_owner.lose(guest, error)

    def ordinal(self, worker: WorkerId) -> int:
        """Number of a worker over all groups."""
        return self.plan.worker_offset(worker.group) + worker.rank

    def statuses_of(self, host: Host) -> dict[int, dict[str, Any]]:
        """What the workers of a host last posted; empty while it does not answer."""
        if host == self.here:
            return {rank: self.worker_statuses.status(rank) for rank in self.worker_statuses.ranks()}
        self.monitor.check()
        answer = self.links.ask([host], WhatTheyPosted(), 2.0)[host]
        return {} if isinstance(answer, PeerLost) else {int(rank): status for rank, status in answer.items()}

    def _used_bytes(self, place: Allocator) -> int:
        with self.monitor.look():
            return place.used

    def _weights_bytes(self) -> int:
        with self.monitor.look():
            return self.weights.used_bytes

    def _last_words(self, worker: WorkerId, host: Host) -> str:
        return self.lateness.last_words(host, worker.rank)

    # ---- putting together

    def _build_links(self, settings: LinkSettings) -> Links:
        route = self.guest_route
        return Links(
            settings,
            life=self.life,
            hears=lambda sender, message: self.peer_side.hears(sender, message),
            lost=lambda host, error: self.break_down(error),
            fails=self.break_down,
            timer=self._timer,
            is_guest=route.is_guest if route else lambda host: False,
            guest_lost=lambda host, error: self.lose_guest(host, error),
            guest_ping_seconds=route.ping_seconds if route else PING_SECONDS,
        )

    def _build_producing(self) -> Producing:
        return Producing(
            self.here,
            self.edges,
            self.segments,
            self.memory,
            monitor=self.monitor,
            links=self.links,
            work=self._work,
            gathers=self.tree.contribute,
            offers_here=self._offer_here,
            counts=self.metrics.put,
            staleness=self.plan.staleness,
        )

    def _build_consuming(self, retry_seconds: float) -> Consuming:
        step_bytes = largest_step(self.plan, self.here.group) if self.plan.staleness else None
        return Consuming(
            self.here,
            self.segments,
            self.memory,
            monitor=self.monitor,
            links=self.links,
            work=self._work,
            streams=self._streams,
            later=self._timer.after,
            timeouts=TransferTimeouts(self.plan.spec.data_buffer.deadline_seconds, retry_seconds),
            received=self._received,
            edges=self.edges,
            ahead=self.plan.staleness if step_bytes is not None else 0,
            step_bytes=step_bytes or 0,
            clock=self._clock,
        )

    def _build_weights(self, retry_seconds: float) -> Weights:
        return Weights(
            self.here,
            self.weights_routes,
            self.memory,
            monitor=self.monitor,
            links=self.links,
            jobs=self._streams,
            later=self._timer,
            last_words=self._last_words,
            metrics=self.metrics,
            retry_seconds=retry_seconds,
            clock=self._clock,
            first_slot=self.segments.memory.capacity,
        )

    def _build_lease_owner(self, retry_seconds: float) -> LeaseOwner | None:
        """None on a host that owns no leases of guests."""
        if self.guest_route is None or self.here not in self.guest_route.owners:
            return None
        owner = LeaseOwner(
            self.here,
            self.guest_route,
            monitor=self.monitor,
            links=self.links,
            later=self._timer.after,
            lease_seconds=self.plan.spec.rollout.lease_seconds,
            version_of=self._version_of,
            complete=lambda stage, step: self.tree.contribute(delivered_topic(stage), step, self.here.index, b""),
            clock=self._clock,
        )
        owner.deliveries = Deliveries(
            self.segments,
            self.memory,
            monitor=self.monitor,
            links=self.links,
            streams=self._streams,
            later=self._timer.after,
            retry_seconds=retry_seconds,
            step_bytes=largest_step(self.plan, self.here.group),
            arrived=owner.arrived,
            clock=self._clock,
        )
        return owner

    def _build_peer_side(self) -> PeerSide:
        return PeerSide(
            here=self.here,
            first_worker=self.plan.worker_offset(self.here.group),
            monitor=self.monitor,
            links=self.links,
            worker_statuses=self.worker_statuses,
            edges=self.edges,
            producing=self.producing,
            consuming=self.consuming,
            tree=self.tree,
            leases=self.leases,
            lease_owner=self.lease_owner,
            guest_parents=self.guest_parents,
            lose_guest=self.lose_guest,
            weights=self.weights,
            metrics=self.metrics,
            break_down=self.break_down,
        )

    def _build_tree(self) -> MessageTree:
        everybody = tuple(range(self.shape.size))
        group = self.plan.group(self.here.group)
        offset = self.plan.worker_offset(group.name) + self.here.index * group.workers_per_host
        members = frozenset(range(offset, offset + group.workers_per_host))
        report = Topic(REPORT, merge_reports, members, everybody, partial(self._collected, REPORT))
        spread = [self._layout(route) for route in self.edges.routes.values() if route.needs_layouts]
        spread += [self._outcomes(route) for route in self.leases.routes.values() if route.has_outcomes]
        if self.guest_route is not None:
            spread += [self._delivered(self.guest_route, stage) for stage in self.guest_route.leased]
        verdict = Announcement(VERDICT, everybody, self._judged if self.leases.is_owner else None)
        return MessageTree(
            self.here,
            self.shape,
            [report, self._validation(members), *(topic for topic, _ in spread)],
            [Announcement(OPENING, everybody), verdict, *(announcement for _, announcement in spread)],
            monitor=self.monitor,
            links=self.links,
            work=self._work,
            kept_steps=self.plan.staleness + 3,
        )

    def _validation(self, members: frozenset[int]) -> Topic:
        """Who generates validates, too; what guests validate is reported by those who own their leases. members: the
        workers of this host."""
        reporting = [group for group in self.plan.gang if self.plan.reports_validation(group.name)]
        hosts = [Host(group.name, index) for group in reporting for index in range(group.replicas)]
        sources = tuple(sorted(map(self.shape.position, hosts)))
        members = members if self.plan.reports_validation(self.here.group) else frozenset()
        return Topic(VALIDATION, merge_reports, members, sources, partial(self._collected, VALIDATION))

    def _layout(self, route: StageRoute) -> tuple[Topic, Announcement]:
        """Layouts of an edge: merged on their way up from its producers, then sent to both ends."""
        name = layout_topic(route.name)
        sources = tuple(sorted({self.shape.position(host) for host in route.producer_hosts}))
        audience = tuple(sorted({self.shape.position(host) for host in route.hosts}))
        members = frozenset(route.parts_on(self.here))
        topic = Topic(name, merge_layouts, members, sources, None)
        return topic, Announcement(name, audience, partial(self._assigned, route.name))

    def _outcomes(self, route: LeaseRoute) -> tuple[Topic, Announcement]:
        """What became of the rounds of a stage: merged on its way up from its generators, then sent to all of them."""
        name, members = outcomes_topic(route.stage), frozenset(route.generators.copies_led_on(self.here))
        hosts = tuple(sorted({self.shape.position(host) for host in route.generating_hosts}))
        return Topic(name, merge_outcomes, members, hosts, None), Announcement(name, hosts)

    def _delivered(self, route: GuestRoute, stage: str) -> tuple[Topic, Announcement]:
        """That all leases of a step are here: from every owner, then sent to all of them."""
        name = delivered_topic(stage)
        members = frozenset({self.here.index} if self.here in route.owners else ())
        hosts = tuple(sorted(map(self.shape.position, route.owners)))
        return Topic(name, lambda parts: b"", members, hosts, None), Announcement(name, hosts)

    def _version_of(self, lease: LeaseId, oldest: int) -> int:
        """The version that a lease is drawn with, in a job that went on with `oldest`."""
        spec = self.plan.spec
        if lease.stage == VALIDATION_PIECES:
            return max(oldest, policy_version(spec, lease.step))
        return generating_version(spec, lease.step, oldest=oldest)

    # ---- events between the parts

    def _judged(self, step: int, payload: bytes) -> None:
        """The verdict on a step is here: everybody has reported it."""
        self.tree.keep(VERDICT, step, payload)
        self.leases.acknowledge(step)

    def _assigned(self, edge: str, step: int, payload: bytes) -> None:
        self.producing.assigned(edge, step, payload)
        with self.monitor.look():
            state = self.edges.at(edge, step)
        self.consuming.assigned(state)

    def _offer_here(self, state: EdgeStep, share: int) -> None:
        self.consuming.offered(state, share, self.here, None)

    def _collected(self, topic: str, step: int, payload: bytes) -> None:
        self.tree.keep(topic, step, payload)

    def _received(self, edge: str, share: ConsumerShare) -> None:
        timing = {"producer_seconds": share.producer_seconds, "transfer_seconds": share.transfer_seconds}
        self.metrics.got(edge, timing, share.remote_bytes)


def largest_step(plan: Plan, group: str) -> int | None:
    """Bytes that the rows of one step take on a host at most; None where columns have sizes that nobody knows."""
    resolution = Resolution(plan.spec)
    capacity = capacity_of(resolution, group, layouts_of(resolution, assign_groups(resolution)))
    return None if capacity.uncounted else capacity.rows_of_a_step
