"""`Jobs`: reads RLJobs and writes their status; one that runs is read again only when something newer was heard of."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rljob_api.v1alpha1.status import RLJobStatus
from rljob_operator.cluster.api import Cluster
from rljob_operator.cluster.kinds import RLJOB
from rljob_operator.cluster.reflector import drop_bookkeeping
from rljob_operator.surveying.job import Job
from rljob_operator.vocabulary.key import Key

_CONFIRMED_SECONDS = 60.0
"""How long a job of which nothing was heard is believed to be as it was: a watch may be deaf."""


class Jobs:
    """One for all jobs.

    Most looks at a job follow from an answer about its progress, and find the job as it was last written.  That a watch
    is late does no harm: a status is written over the version that was looked at, or not at all.
    """

    def __init__(
        self, cluster: Cluster, newest: Callable[[Key], int | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`newest`: the version of a job that events last told of; None for one that is gone, or was never told of."""
        self._cluster = cluster
        self._newest = newest
        self._clock = clock
        self._known: dict[Key, _Known] = {}

    async def read(self, key: Key) -> Job | None:
        """The job; None when there is none."""
        known = self._known.get(key)
        if known is not None and self._is_good(known):
            return known.job
        self._known.pop(key, None)
        body = await self._cluster.get(RLJOB, key.namespace, key.name)
        return None if body is None else self._keep(Job.read(key, body))

    async def write(self, job: Job, status: RLJobStatus) -> None:
        """Write the status, where it changed, of the very version that was looked at.  Raises ClusterError."""
        # The API server takes null for a value of the wrong type: what is not known is left out, at any depth.
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        if body == job.body.get("status"):
            return
        self._known.pop(job.key, None)
        metadata = {"name": job.key.name, "uid": job.uid, "resourceVersion": job.version}
        written = await self._cluster.apply_status(RLJOB, job.key.namespace, {"metadata": metadata, "status": body})
        self._keep(Job.read(job.key, written))

    def _is_good(self, known: _Known) -> bool:
        newest = self._newest(known.job.key)
        is_newest = newest is not None and newest <= int(known.job.version)
        return is_newest and self._clock() - known.confirmed_at < _CONFIRMED_SECONDS

    def _keep(self, job: Job) -> Job:
        if job.is_alive:
            drop_bookkeeping(job.body)
            self._known[job.key] = _Known(job, self._clock())
        return job


@dataclass(frozen=True)
class _Known:
    job: Job
    confirmed_at: float
    """When the API server last showed it so."""
