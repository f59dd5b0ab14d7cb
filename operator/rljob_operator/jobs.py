"""`Jobs`: reads RLJobs and writes their status; one that runs is read again only when something newer was heard of."""

from __future__ import annotations

from collections.abc import Callable

from rljob_api.v1alpha1.status import LIVING_PHASES, RLJobStatus
from rljob_operator.cluster.api import Cluster, Object
from rljob_operator.cluster.kinds import RLJOB
from rljob_operator.cluster.reflector import drop_bookkeeping
from rljob_operator.job import Job
from rljob_operator.key import Key


class Jobs:
    """One for all jobs.

    Most looks at a job follow from an answer about its progress, and find the job as it was last written.  That a watch
    is late does no harm: a status is written over the version that was looked at, or not at all.
    """

    def __init__(self, cluster: Cluster, newest: Callable[[Key], int | None]) -> None:
        """`newest`: the version of a job that events last told of; None for one that is gone, or was never told of."""
        self._cluster = cluster
        self._newest = newest
        self._known: dict[Key, Job] = {}

    async def read(self, key: Key) -> Job | None:
        """The job; None when there is none."""
        known, newest = self._known.get(key), self._newest(key)
        if known is not None and newest is not None and newest <= int(known.version):
            return known
        self._known.pop(key, None)
        body = await self._cluster.get(RLJOB, key.namespace, key.name)
        return None if body is None else Job.read(key, body)

    async def write(self, job: Job, status: RLJobStatus) -> None:
        """Write the status, where it changed, of the very version that was looked at.  Raises ClusterError."""
        self._known.pop(job.key, None)
        # The API server takes null for a value of the wrong type: what is not known is left out, at any depth.
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        if body != job.body.get("status"):
            job = Job.read(job.key, await self._written(job, body))
        if status.phase in LIVING_PHASES:
            self._known[job.key] = job

    async def _written(self, job: Job, status: Object) -> Object:
        metadata = {"name": job.key.name, "uid": job.uid, "resourceVersion": job.version}
        body = await self._cluster.apply_status(RLJOB, job.key.namespace, {"metadata": metadata, "status": status})
        drop_bookkeeping(body)
        return body
