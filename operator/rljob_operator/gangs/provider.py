"""`Gang`: the contract of a scheduler or queue that starts all pods of a job together, as pure renderings and readings.

What there is of each: how it is asked (`objects`, `shape`), what it says (`admission`, `waits_for_all`), and what is
reported to it (`renewed`, `report`, `release`, `finish`).  A new one is a class that stands on `Ungrouped`, and its
name in `choosing.GANGS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.states.situation.facts import Admission, AdmissionState


@dataclass(frozen=True)
class Readiness:
    """How far a gang is, as a queue wants to hear it."""

    pods_ready: bool
    """Whether every pod of the attempt is ready or has ended well."""
    finished_pods: Mapping[str, int]
    """Pods of each worker group that ended well and will not come back."""


@dataclass(frozen=True)
class ClusterObjectReference:
    """An object without a namespace that a gang has to see to understand its own."""

    api_version: str
    kind: str
    name: str


class GangProvider(Protocol):
    """One way to start a gang.  Every method is pure; what it returns is applied by the reconciler.

    `objects` that a method takes are live ones of the job, with what `references` named; a method ignores others.
    """

    @property
    def provider(self) -> str:
        """As in `scheduling.provider`, without `Auto`."""
        ...

    @property
    def api_versions(self) -> tuple[str, ...]:
        """API versions, newest first, one of which the API server must serve; empty: nothing is needed."""
        ...

    @property
    def release_manager(self) -> str | None:
        """The field manager as which `release` is applied, because it takes back what that one wrote. None: ours."""
        ...

    @property
    def is_queue(self) -> bool:
        """Whether a job waits for it before it makes pods: then its objects say when."""
        ...

    def waits_for_all(self, objects: Sequence[Manifest]) -> bool:
        """Whether nothing of the gang keeps a place while not all of it has one."""
        ...

    def renewed(self, objects: Sequence[Manifest], wanted: Sequence[Manifest]) -> list[Manifest]:
        """What to apply over live objects where what is `wanted` changed, and may be changed."""
        ...

    def objects(self, context: JobContext, attempt: int) -> list[Manifest]:
        """What must be there before the pods of an attempt; created when missing, never changed, then read back."""
        ...

    def references(self, objects: Sequence[Manifest]) -> list[ClusterObjectReference]:
        """What `admission` needs to see besides `objects`."""
        ...

    def shape(self, context: JobContext, pod: Manifest) -> Manifest:
        """The pod with what the scheduler looks at: labels, annotations, schedulerName."""
        ...

    def shape_guest(self, context: JobContext, pod: Manifest) -> Manifest:
        """A pod of the elastic group, which starts by itself, with what the scheduler or queue looks at."""
        ...

    def admission(self, objects: Sequence[Manifest]) -> Admission:
        """Whether the pods may be made; no object yet: Waiting where one is needed."""
        ...

    def report(self, objects: Sequence[Manifest], readiness: Readiness) -> list[Manifest]:
        """Status to apply while the gang runs; empty when nothing is news."""
        ...

    def release(self, objects: Sequence[Manifest]) -> list[Manifest]:
        """Status to apply after an eviction once no pod is left, so that the job can be queued again."""
        ...

    def finish(self, objects: Sequence[Manifest], message: str) -> list[Manifest]:
        """Status to apply when the job has ended in any way, so that its quota goes back."""
        ...


class Ungrouped:
    """No gang scheduler: the operator watches whether all pods find a node, and takes them back when they do not.

    Makes no object, asks nobody.  The base of every provider that is not a queue.
    """

    provider = "None"
    api_versions: tuple[str, ...] = ()
    release_manager: str | None = None
    is_queue = False
    counts_services = True
    """Whether the models beside a job may stand beside this gang: because they are part of what is asked for, or
    because nobody asks.  A group of pods that is made anew with every attempt holds no pod that outlives attempts, and
    what is outside of it is counted nowhere."""

    def waits_for_all(self, objects: Sequence[Manifest]) -> bool:
        return self.provider != "None"

    def renewed(self, objects: Sequence[Manifest], wanted: Sequence[Manifest]) -> list[Manifest]:
        return []

    def objects(self, context: JobContext, attempt: int) -> list[Manifest]:
        return []

    def references(self, objects: Sequence[Manifest]) -> list[ClusterObjectReference]:
        return []

    def shape(self, context: JobContext, pod: Manifest) -> Manifest:
        return pod

    def shape_guest(self, context: JobContext, pod: Manifest) -> Manifest:
        return pod

    def admission(self, objects: Sequence[Manifest]) -> Admission:
        return Admission(AdmissionState.ADMITTED)

    def report(self, objects: Sequence[Manifest], readiness: Readiness) -> list[Manifest]:
        return []

    def release(self, objects: Sequence[Manifest]) -> list[Manifest]:
        return []

    def finish(self, objects: Sequence[Manifest], message: str) -> list[Manifest]:
        return []
