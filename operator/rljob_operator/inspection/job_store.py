"""`Jobs`: reads RLJobs and writes their status, and `Memory`: what is remembered of one between two looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from rljob_api.v1alpha1.status import LIVING_PHASES, RLJobStatus
from rljob_api.vocabulary import keys
from rljob_operator.cluster.api import Cluster, Object
from rljob_operator.cluster.kinds import RLJOB
from rljob_operator.cluster.reflector import drop_bookkeeping
from rljob_operator.inspection.acceptance import Accepted
from rljob_operator.manifests.context import WrittenPlan
from rljob_operator.manifests.metadata import is_child_of
from rljob_operator.observing.pods import pod_facts
from rljob_operator.states import Refusal
from rljob_operator.states.situation.facts import PodFacts
from rljob_operator.states.situation.situation import Obstacle
from rljob_operator.vocabulary.key import EventSubject, Key

_LONG_AGO = "1970-01-01T00:00:00Z"
_CONFIRMED_SECONDS = 60.0
"""How long a job of which nothing was heard is believed to be as it was: a watch may be deaf."""


def read_status(written: Mapping[str, Any] | None) -> RLJobStatus:
    """The status that was last written, also where somebody edited it or another version wrote it.

    Fields that are none of ours, or hold what cannot be, are left out and so written anew.
    """
    status = dict(written or {})
    while True:
        try:
            return RLJobStatus.model_validate(status)
        except ValidationError as error:
            for item in error.errors():
                _mend(status, item["loc"])


def _mend(status: dict[str, Any], place: tuple[int | str, ...]) -> None:
    """Drop only what is wrong from conditions: that a job has ended must not be forgotten for the sake of a time."""
    field = str(place[0])
    entries = status.get(field)
    if field != "conditions" or len(place) < 2 or not isinstance(entries, list):
        status.pop(field, None)
        return
    at = int(place[1])
    entry = entries[at] if at < len(entries) else None
    is_time = place[2:] == ("lastTransitionTime",) and isinstance(entry, dict)
    mended = [{**entry, "lastTransitionTime": _LONG_AGO}] if is_time and entry is not None else []
    status[field] = [*entries[:at], *mended, *entries[at + 1 :]]


@dataclass(frozen=True)
class ObservedJob:
    """An RLJob as it was just read."""

    key: Key
    body: Object
    status: RLJobStatus

    @classmethod
    def read(cls, key: Key, body: Object) -> ObservedJob:
        """The job of an object."""
        return cls(key, body, read_status(body.get("status")))

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    @property
    def version(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])

    @property
    def subject(self) -> EventSubject:
        """What events are about."""
        return EventSubject(self.key.namespace, self.key.name, self.uid, self.version)

    @property
    def generation(self) -> int:
        return int(self.body["metadata"]["generation"])

    @property
    def is_being_deleted(self) -> bool:
        return "deletionTimestamp" in self.body["metadata"]

    @property
    def is_to_be_reconciled(self) -> bool:
        """Not what is being deleted, which garbage collection ends, and not what others reconcile."""
        return not self.is_being_deleted and self.body["spec"].get("managedBy", keys.MANAGED_BY) == keys.MANAGED_BY

    @property
    def is_alive(self) -> bool:
        """Whether pods of an attempt are meant to be there."""
        return self.status.phase in LIVING_PHASES


@dataclass
class JobMemory:
    """All of it may be forgotten at any time."""

    plans: dict[str, WrittenPlan] = field(default_factory=dict)
    """By name of the ConfigMap, which is immutable."""
    accepted: tuple[tuple[object, ...], Accepted | Refusal] | None = None
    """What a generation of the spec and labels say, next to a running plan."""
    ceilings: tuple[Accepted, Refusal | None] | None = None
    """Whether what was accepted goes beyond them."""
    facts: dict[str, tuple[str, PodFacts]] = field(default_factory=dict)
    """Pod uid → its version and what was read off it."""
    out_of_sight: set[str] = field(default_factory=set)
    """Names of pods that no label leads to, and that are to go."""
    obstacle: Obstacle | None = None
    guests_refused: str = ""
    """Why a pod of the elastic group could not be made; none is tried before `guests_quiet_until`."""
    guests_quiet_until: float = float("-inf")
    quiet_until: float = float("-inf")
    num_failed: int = 0
    """Looks in a row that ended with an exception."""
    num_idle: int = 0
    """Looks in a row that changed nothing and wanted another at once."""
    last_heal: float = float("-inf")

    def read_pods(self, pods: Iterable[Object], job_uid: str) -> tuple[PodFacts, ...]:
        """The job's pods; read off again only where a pod has changed, for a job may have a thousand."""
        self.facts = {pod["metadata"]["uid"]: self._fact(pod) for pod in pods if is_child_of(pod, job_uid)}
        return tuple(facts for _, facts in self.facts.values())

    def _fact(self, pod: Object) -> tuple[str, PodFacts]:
        version, known = pod["metadata"]["resourceVersion"], self.facts.get(pod["metadata"]["uid"])
        return known if known is not None and known[0] == version else (version, pod_facts(pod))


class JobStore:
    """One for all jobs; a job that runs is read again only when something newer was heard of.

    Most looks at a job follow from an answer about its progress, and find the job as it was last written.  That a watch
    is late does no harm: a status is written over the version that was looked at, or not at all.
    """

    def __init__(
        self, cluster: Cluster, newest: Callable[[Key], int | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`newest`: the version of a job that events last reported; None for one that is gone or was never reported."""
        self._cluster = cluster
        self._newest = newest
        self._clock = clock
        self._known: dict[Key, _Known] = {}

    async def read(self, key: Key) -> ObservedJob | None:
        """The job; None when there is none."""
        known = self._known.get(key)
        if known is not None and self._is_good(known):
            return known.job
        self._known.pop(key, None)
        body = await self._cluster.get(RLJOB, key.namespace, key.name)
        return None if body is None else self._keep(ObservedJob.read(key, body))

    async def write(self, job: ObservedJob, status: RLJobStatus) -> None:
        """Write the status, where it changed, of the very version that was looked at.  Raises ClusterError."""
        # The API server takes null for a value of the wrong type: what is not known is left out, at any depth.
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        if body == job.body.get("status"):
            return
        self._known.pop(job.key, None)
        metadata = {"name": job.key.name, "uid": job.uid, "resourceVersion": job.version}
        written = await self._cluster.apply_status(RLJOB, job.key.namespace, {"metadata": metadata, "status": body})
        self._keep(ObservedJob.read(job.key, written))

    def _is_good(self, known: _Known) -> bool:
        newest = self._newest(known.job.key)
        is_newest = newest is not None and newest <= int(known.job.version)
        return is_newest and self._clock() - known.confirmed_at < _CONFIRMED_SECONDS

    def _keep(self, job: ObservedJob) -> ObservedJob:
        if job.is_alive:
            drop_bookkeeping(job.body)
            self._known[job.key] = _Known(job, self._clock())
        return job


@dataclass(frozen=True)
class _Known:
    job: ObservedJob
    confirmed_at: float
    """When the API server last showed it so."""
