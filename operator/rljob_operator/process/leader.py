"""`Leader`: what the one replica that works runs, and in which order it starts and stops."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rljob_api.vocabulary import keys
from rljob_operator.cluster.api import Object
from rljob_operator.cluster.client import ApiCluster
from rljob_operator.cluster.errors import ApiError
from rljob_operator.cluster.kind_watch import KindWatch, ServedApis
from rljob_operator.cluster.kinds import POD, RAY_SERVICE, RLJOB, ResourceKind
from rljob_operator.cluster.login import Login
from rljob_operator.cluster.reflector import Pauses, Reflector, drop_spec, keep_node_of_pod
from rljob_operator.gangs.providers import WORKLOADS, drop_pod_sets
from rljob_operator.guard import EndedByItself, Guard
from rljob_operator.listening.handlers import JobChange, announce_jobs, run_kopf
from rljob_operator.listening.progress import ProgressPolls, ProgressReader
from rljob_operator.listening.queue import WorkQueue
from rljob_operator.listening.resync import Resync, SeenVersions
from rljob_operator.process.metrics import Metrics
from rljob_operator.process.probes import Health, LoopLag, Vitals
from rljob_operator.process.settings import OperatorSettings
from rljob_operator.reporting.event_writer import EventWriter
from rljob_operator.vocabulary.backoff import Backoff
from rljob_operator.vocabulary.key import Key

logger = logging.getLogger(__name__)

CHILD_LABELS = f"{keys.LABEL_MANAGED_BY}={keys.MANAGED_BY_VALUE},{keys.LABEL_JOB}"
LOOK_AGAIN_SECONDS = 5.0
_FIRST_LOOKS_SECONDS = 10.0
"""The longest that kopf is kept waiting: what happens meanwhile is heard of when it begins."""

Reconcile = Callable[[Key], Awaitable[float | None]]


@dataclass(frozen=True)
class ReconcilerContext:
    """What a reconciler works with."""

    settings: OperatorSettings
    cluster: ApiCluster
    heard: SeenVersions
    pods: Reflector
    progress: ProgressPolls
    metrics: Metrics
    served: ServedApis
    queue_watch: KindWatch
    ray_watch: KindWatch
    event_writer: EventWriter


class Leader:
    """Reflects pods, hears of jobs, and reconciles them."""

    def __init__(
        self,
        settings: OperatorSettings,
        login: Login,
        metrics: Metrics,
        cluster: ApiCluster,
        direct: ApiCluster,
        progress: ProgressReader,
        make_reconcile: Callable[[ReconcilerContext], Reconcile],
    ) -> None:
        """`direct` has no rate limit and no retries: probes use it."""
        self._settings = settings
        self._login = login
        self._metrics = metrics
        self._cluster = cluster
        self._direct = direct
        self._heard = SeenVersions()
        self._guard = Guard(metrics.failed, begin=metrics.begun)
        self._pods = Reflector(
            cluster,
            POD,
            settings.namespaces,
            CHILD_LABELS,
            self._pods_changed,
            pauses=Pauses(settings.api.relist_seconds),
            on_activity=metrics.watched,
            trim=keep_node_of_pod,
            guard=self._guard,
        )
        self._served = ServedApis(cluster.served_versions)
        self._queue_watch = KindWatch(self._served, WORKLOADS, self._reflector_of(drop_pod_sets))
        rays = (RAY_SERVICE,) if settings.pods.ray_services else ()
        self._ray_watch = KindWatch(self._served, rays, self._reflector_of(drop_spec))
        self._event_writer = EventWriter(cluster, time.time, self._guard)
        self._polls = ProgressPolls(
            progress.read,
            lambda key: self._queue.hint(key),
            interval_seconds=settings.progress.interval_seconds,
            concurrency=settings.progress.concurrency,
            guard=self._guard,
        )
        self._queue = WorkQueue(
            make_reconcile(self._reconciler_context()),
            settings.queue.workers,
            backoff=Backoff(settings.queue.first_retry_seconds, settings.queue.last_retry_seconds),
            observer=metrics,
        )
        self._resync = Resync(
            cluster,
            settings.namespaces,
            self._heard,
            self._queue.add,
            interval_seconds=settings.queue.resync_seconds,
            on_done=self._resynced,
        )
        self._lag = LoopLag()
        self._health = Health(self._vitals, self._read_problem, settings.probes)
        self.unready: str | None = "jobs and pods are not listed yet"
        """Why /readyz fails, or None."""
        metrics.follow(lambda: self._queue.depth, lambda: self._queue.oldest_seconds, lambda: self._lag.seconds)

    def _reconciler_context(self) -> ReconcilerContext:
        return ReconcilerContext(
            self._settings,
            self._cluster,
            self._heard,
            self._pods,
            self._polls,
            self._metrics,
            self._served,
            self._queue_watch,
            self._ray_watch,
            self._event_writer,
        )

    @property
    def fault(self) -> str | None:
        """Why /healthz fails, or None."""
        return self._health.fault

    async def run(
        self, guards: Sequence[Callable[[], Awaitable[None]]], stop: asyncio.Event, catch_signals: Callable[[], None]
    ) -> None:
        """Work until `stop` is set, and then until what is under way has ended, within bounds.

        Raises a group with `EndedByItself`, or with what a guard raised: then nothing is waited for.
        """
        around: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:

            def start(part: Callable[[], Awaitable[None]], name: str) -> None:
                around.append(group.create_task(self._guard.for_ever(name, part), name=name))

            def rely_on(part: Callable[[], Awaitable[None]], name: str) -> None:
                """Without it nothing may go on: the process ends with it."""
                around.append(group.create_task(_for_ever(part, name), name=name))

            for guard in guards:
                rely_on(guard, "guard")
            start(self._pods.run, "pods")
            start(self._lag.run, "loop lag")
            start(self._health.run, "health")
            if await first_done(stop, self._ready()):
                work = group.create_task(self._queue.run(), name="queue")
                start(self._event_writer.run, "events")
                start(self._polls.run, "progress")
                start(self._resync.run, "resync")
                start(self._served.run, "served APIs")
                start(self._queue_watch.run, "queue watch")
                start(self._ray_watch.run, "watch of RayServices")
                rely_on(lambda: self._hear(catch_signals), "kopf")
                self.unready = None
                logger.info("working")
                await stop.wait()
                await self._wind_up(work)
            for task in around:
                task.cancel()

    async def _hear(self, catch_signals: Callable[[], None]) -> None:
        await self._meet_jobs()
        await run_kopf(self._login, self._settings.namespaces, self._job_changed, catch_signals)

    async def _meet_jobs(self) -> None:
        """Living jobs are looked at before kopf reports all, living and ended, as they come, and is busy with that."""
        try:
            await announce_jobs(self._cluster, self._settings.namespaces, self._job_changed)
        except ApiError as error:
            logger.warning("%s; jobs are looked at as kopf reports them", error)
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LOOKS_SECONDS):
                await self._queue.until_calm()

    def _job_changed(self, news: JobChange) -> None:
        self._metrics.watched(RLJOB)
        if self._heard.take(news.key, news.version, news.is_deleted):
            # At a start all jobs are heard of at once, and most of them may have ended long ago.
            self._queue.add(news.key, is_patient=news.has_ended)

    def _resynced(self, num_missed: int) -> None:
        # kopf does not report bookmarks: in a quiet cluster this is what shows that jobs are listened to.
        self._metrics.watched(RLJOB)
        self._metrics.missed(num_missed)

    def _reflector_of(self, trim: Callable[[Object], None]) -> Callable[[ResourceKind], Reflector]:
        return lambda kind: Reflector(
            self._cluster,
            kind,
            self._settings.namespaces,
            CHILD_LABELS,
            self._queue.add,
            pauses=Pauses(self._settings.api.relist_seconds),
            on_activity=self._metrics.watched,
            trim=trim,
            guard=self._guard,
        )

    def _pods_changed(self, key: Key) -> None:
        self._queue.hint(key, self._settings.queue.settle_seconds)

    async def _ready(self) -> None:
        """Return once jobs may be read and pods are known."""
        while (problem := await self._problem_at_start()) is not None:
            self.unready = f"{problem}; is the CRD installed?"
            logger.warning("%s", self.unready)
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
        await self._pods.wait_synced()

    async def _problem_at_start(self) -> str | None:
        try:
            await self._served.refresh()
        except ApiError as error:
            return str(error)
        return await self._read_problem()

    async def _read_problem(self) -> str | None:
        """Why jobs cannot be read, or None."""
        try:
            for namespace in self._settings.namespaces or (None,):
                await self._direct.list(RLJOB, namespace, limit=1)
        except ApiError as error:
            return str(error)
        return None

    async def _wind_up(self, work: asyncio.Task[None]) -> None:
        seconds = self._settings.queue.stop_seconds
        logger.info("stopping; %d jobs wait for the next leader", self._queue.depth)
        self.unready = "stopping"
        self._queue.stop()
        _, unfinished = await asyncio.wait([work], timeout=seconds)
        if unfinished:
            logger.warning("what was under way did not end within %g s", seconds)
            work.cancel()

    def _vitals(self) -> Vitals:
        now = asyncio.get_running_loop().time()
        return Vitals(
            watch_silence_seconds=now - self._pods.last_activity if self._pods.synced else 0.0,
            queue_oldest_seconds=self._queue.oldest_seconds,
            loop_lag_seconds=self._lag.seconds,
            num_deaf_resyncs=self._resync.num_deaf,
        )


async def _for_ever(part: Callable[[], Awaitable[None]], name: str) -> None:
    await part()
    raise EndedByItself(f"{name} ended")


async def first_done(stop: asyncio.Event, part: Coroutine[Any, Any, None]) -> bool:
    """Run `part`; whether it ended before `stop` was set, which cancels it.  What it raises is raised."""
    working, stopping = asyncio.create_task(part), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
        return not stop.is_set()
    finally:
        working.cancel()
        stopping.cancel()
