"""`Reflector`: a cache of the jobs' children that notices everything, also what was deleted while nobody watched."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, field

from rljob_operator.cluster.api import Cluster, Object, list_pages
from rljob_operator.cluster.child_cache import ChildCache, job_of, version_of
from rljob_operator.cluster.errors import ApiError, Gone
from rljob_operator.cluster.kinds import ResourceKind
from rljob_operator.guard import Guard
from rljob_operator.vocabulary.backoff import Backoff
from rljob_operator.vocabulary.key import Key

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pauses:
    """How long a reflector waits, and for what."""

    relist_seconds: float = 300.0
    """Everything is listed again after about so long, although the watch speaks."""
    after_failure: Backoff = field(default=Backoff(0.5, 30.0))
    after_short_watch_seconds: float = 1.0
    """After a watch that lasted less: a proxy that ends watches at once must not make us spin."""


DEFAULT_PAUSES = Pauses()


def drop_bookkeeping(item: Object) -> None:
    """Drop what server-side apply notes for itself; it can be half of an object."""
    item["metadata"].pop("managedFields", None)


def drop_spec(item: Object) -> None:
    """What was asked for is ours; what became of it is in the status."""
    drop_bookkeeping(item)
    item.pop("spec", None)


def keep_node_of_pod(pod: Object) -> None:
    """Keep nothing of a pod's spec except its node: a thousand specs would be most of the operator's memory."""
    drop_bookkeeping(pod)
    if "spec" in pod:  # a bookmark has none
        pod["spec"] = {"nodeName": pod["spec"].get("nodeName")}


class Reflector:
    """LIST in pages and replace the cache → WATCH with bookmarks → LIST again, now and then or when the watch fails.

    Call `run` as a task.  `on_change` is called with each job whose children changed: those that carry its name in
    the label `rljob.dev/job`, in its namespace.  No namespaces: all of them.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: ResourceKind,
        namespaces: Sequence[str],
        labels: str,
        on_change: Callable[[Key], None],
        *,
        pauses: Pauses = DEFAULT_PAUSES,
        on_activity: Callable[[ResourceKind], None] = lambda kind: None,
        trim: Callable[[Object], None] = drop_bookkeeping,
        guard: Guard | None = None,
    ) -> None:
        """`trim` takes from each child, in place, what nobody reads."""
        self.kind = kind
        self._trim = trim
        self._guard = guard or Guard()
        self._feeds = {
            namespace: _Feed(cluster, kind, namespace, labels, on_change, pauses, on_activity, trim, self._guard)
            for namespace in namespaces or (None,)
        }

    def of(self, key: Key) -> tuple[Object, ...]:
        """The children of a job, by name.  Do not change them: they are the cache's own."""
        feed = self._feed(key.namespace)
        return feed.cache.of(key) if feed else ()

    def departed(self, key: Key, name: str) -> Object | None:
        """The last state of a child that was deleted; None where it is not known, or not known any more."""
        feed = self._feed(key.namespace)
        return feed.cache.departed(key, name) if feed else None

    def note(self, child: Object) -> None:
        """Take the answer of a create, ahead of the watch, so that the next reconcile knows of it."""
        feed = self._feed(child["metadata"]["namespace"])
        if feed is not None:
            self._trim(child)
            feed.cache.note(child)

    @property
    def synced(self) -> bool:
        """Whether the first LIST is done everywhere; until then `of` knows nothing."""
        return all(feed.synced.is_set() for feed in self._feeds.values())

    async def wait_synced(self) -> None:
        """Return once `synced`."""
        for feed in self._feeds.values():
            await feed.synced.wait()

    @property
    def last_activity(self) -> float:
        """When the quietest watch last said anything, bookmarks included, on the event loop's clock."""
        return min(feed.last_activity for feed in self._feeds.values())

    async def run(self) -> None:
        """Reflect until cancelled."""
        async with asyncio.TaskGroup() as feeds:
            for feed in self._feeds.values():
                feeds.create_task(self._guard.for_ever(f"watch of {self.kind.resource}", feed.run))

    def _feed(self, namespace: str) -> _Feed | None:
        return self._feeds.get(None) or self._feeds.get(namespace)


class _Feed:
    """One watch: of one namespace, or of all."""

    def __init__(
        self,
        cluster: Cluster,
        kind: ResourceKind,
        namespace: str | None,
        labels: str,
        on_change: Callable[[Key], None],
        pauses: Pauses,
        on_activity: Callable[[ResourceKind], None],
        trim: Callable[[Object], None],
        guard: Guard,
    ) -> None:
        self.cache = ChildCache()
        self.synced = asyncio.Event()
        self.last_activity = float("-inf")
        self._cluster = cluster
        self._kind = kind
        self._namespace = namespace
        self._labels = labels
        self._on_change = on_change
        self._pauses = pauses
        self._on_activity = on_activity
        self._trim = trim
        self._guard = guard

    async def run(self) -> None:
        num_failures = 0
        while True:
            began = _now()
            try:
                await self._list()
                await self._watch(until=_now() + self._pauses.relist_seconds * random.uniform(0.9, 1.1))
                num_failures = 0
            except ApiError as error:
                # A failure after a long good time is a fresh one, not one more in a row.
                num_failures = 1 if _now() - began > self._pauses.after_failure.last_seconds else num_failures + 1
                await self._pause(error, num_failures)

    async def _list(self) -> None:
        items: list[Object] = []
        version = "0"
        async for page in list_pages(self._cluster, self._kind, self._namespace, labels=self._labels):
            for item in page.items:
                with self._guarded(item):
                    self._trim(item)
                    job_of(item), version_of(item)
                    items.append(item)
            version = page.resource_version
        changed = self.cache.replace(items, version)
        self._active()
        self.synced.set()
        for key in changed:
            self._on_change(key)

    async def _watch(self, until: float) -> None:
        while (began := _now()) < until:
            stream = self._cluster.watch(
                self._kind, self._namespace, labels=self._labels, resource_version=str(self.cache.version)
            )
            async with aclosing(stream):
                async for type_, item in stream:
                    self._active()
                    with self._guarded(item):
                        self._trim(item)
                        key = self.cache.update(type_, item)
                        if key is not None:
                            self._on_change(key)
                    if _now() >= until:
                        return
            if _now() - began < self._pauses.after_short_watch_seconds:
                await asyncio.sleep(self._pauses.after_short_watch_seconds)

    def _guarded(self, item: Object) -> AbstractContextManager[None]:
        """An object that cannot be taken is left out; the others are seen as ever."""
        metadata = item.get("metadata") or {}
        return self._guard.around(
            f"watch of {self._kind.resource}", f"{metadata.get('namespace')}/{metadata.get('name')}"
        )

    async def _pause(self, error: ApiError, num_failures: int) -> None:
        seconds = self._pauses.after_failure.seconds(num_failures, random.random())
        # That a watch is too old is everyday; that the cluster cannot be reached is not.
        level = logging.DEBUG if isinstance(error, Gone) else logging.WARNING
        logger.log(level, "%s; listing again in %.1f s", error, seconds)
        await asyncio.sleep(seconds)

    def _active(self) -> None:
        self.last_activity = _now()
        self._on_activity(self._kind)


def _now() -> float:
    return asyncio.get_running_loop().time()
