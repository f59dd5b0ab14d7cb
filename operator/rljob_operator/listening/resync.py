"""`Resync`: lists all jobs now and then, and finds the changes that no event reported."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rljob_operator.cluster.api import Cluster, Object, list_pages
from rljob_operator.cluster.errors import ApiError
from rljob_operator.cluster.kinds import RLJOB
from rljob_operator.vocabulary.key import Key

logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0


class SeenVersions:
    """The newest version of each job that an event reported; jobs that were deleted are forgotten."""

    def __init__(self) -> None:
        self._versions: dict[Key, int] = {}

    @property
    def versions(self) -> Mapping[Key, int]:
        return self._versions

    def of(self, key: Key) -> int | None:
        """The job's; None for one that is gone, or was never reported."""
        return self._versions.get(key)

    def take(self, key: Key, version: int, deleted: bool) -> bool:
        """An event reported a job; whether that is news."""
        if deleted:
            self._versions.pop(key, None)
            return True
        is_news = version > self._versions.get(key, 0)
        if is_news:
            self._versions[key] = version
        return is_news


class Resync:
    """Compares the versions that a LIST shows with those that events reported.

    kopf neither reports jobs that were deleted while it did not watch nor notices that it is deaf.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespaces: Sequence[str],
        heard: SeenVersions,
        add: Callable[[Key], None],
        *,
        interval_seconds: float = 300.0,
        on_done: Callable[[int], None] = lambda num_missed: None,
    ) -> None:
        self._cluster = cluster
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._add = add
        self._interval_seconds = interval_seconds
        self._on_done = on_done
        self._heard = heard
        self.num_deaf = 0
        """Resyncs in a row that found something."""

    async def run(self) -> None:
        """Resync until cancelled."""
        while True:
            await asyncio.sleep(self._interval_seconds)
            try:
                await self.once()
            except ApiError as error:
                logger.warning("%s; the next resync is in %.0f s", error, self._interval_seconds)

    async def once(self) -> None:
        """List, wait for events that are under way, and look at the jobs of which none came."""
        listing = await self._list()
        if self._unheard(listing):
            await asyncio.sleep(GRACE_SECONDS)
        missed = self._unheard(listing)
        self.num_deaf = self.num_deaf + 1 if missed else 0
        for key in sorted(missed):
            logger.warning("no event reported a change of %s; looking at it now", key)
            self._heard.take(key, listing.versions.get(key, 0), deleted=key not in listing.versions)
            self._add(key)
        self._on_done(len(missed))

    def _unheard(self, listing: _Listing) -> set[Key]:
        heard = self._heard.versions
        changed = {key for key, version in listing.versions.items() if heard.get(key, 0) < version}
        # A job heard of at a later version is newer than the list, not deleted.
        deleted = {key for key, version in heard.items() if version <= listing.as_of} - listing.versions.keys()
        return changed | deleted

    async def _list(self) -> _Listing:
        versions: dict[Key, int] = {}
        as_of: list[int] = []
        for namespace in self._namespaces:
            async for page in list_pages(self._cluster, RLJOB, namespace):
                versions |= {_key(item): int(item["metadata"]["resourceVersion"]) for item in page.items}
                as_of.append(int(page.resource_version))
        return _Listing(versions, min(as_of))


@dataclass(frozen=True)
class _Listing:
    versions: dict[Key, int]
    as_of: int
    """Nothing later than this version was seen anywhere."""


def _key(job: Object) -> Key:
    return Key(job["metadata"]["namespace"], job["metadata"]["name"])
