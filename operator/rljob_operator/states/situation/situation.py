"""`Situation`: all that a decision follows from.  `Decision`: what is reported, and then done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property
from typing import Any

from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.v1alpha1.status import ConditionType, RLJobStatus
from rljob_operator import names
from rljob_operator.states.situation.conditions import Claim, Claims, Reason
from rljob_operator.states.situation.facts import (
    Admission,
    AdmissionState,
    AgentsFacts,
    PodFacts,
    ProgressAnswer,
    Server,
    UnreachableLead,
)
from rljob_operator.vocabulary.backoff import Backoff
from rljob_operator.vocabulary.timestamps import timestamp

END_GRACE_SECONDS = 2
"""What pods of a gang that failed have to end: it cannot checkpoint any more."""
_PAUSE = Backoff(5.0, 300.0)


@dataclass(frozen=True)
class Refusal:
    """Why no pod may be made."""

    reason: Reason
    message: str
    is_final: bool = False
    """Whether only another spec would help."""


@dataclass(frozen=True)
class Obstacle:
    """What the last look at the job met."""

    reason: Reason
    message: str
    is_refusal: bool = True
    """Whether the cluster said no, and will again: an attempt that cannot be made for it is given up.  What merely
    failed is tried again."""


@dataclass(frozen=True)
class PlanName:
    """The plan that an attempt beginning now would run."""

    hash: str
    config_map: str


@dataclass(frozen=True)
class Situation:
    """A job as it is now."""

    name: str
    spec: RLJobSpec
    """As it was accepted, with today's values of the fields that may change."""
    status: RLJobStatus
    """As it was last written."""
    now: float
    """Seconds since 1970."""
    pods: tuple[PodFacts, ...] = ()
    """The pods of the gang, of every attempt."""
    service_pods: tuple[PodFacts, ...] = ()
    """Those of services, of every start."""
    guest_pods: tuple[PodFacts, ...] = ()
    """Those of an elastic group, of every attempt and start."""
    guests_refused: str = ""
    """Why the cluster refused to make one of them when that was last tried.  Empty: it did not."""
    are_guests_paused: bool = False
    """Whether that is to be tried again only after a while."""
    agents: AgentsFacts = AgentsFacts()
    """Pods of agents beside it."""
    departed: Mapping[str, PodFacts] = field(default_factory=dict)
    """Name of a missing pod → how it was last seen."""
    generation: int = 1
    chance: float = 0.5
    """In [0, 1), the job's own: pauses differ between jobs that failed at once."""
    lead_group: str = "train"
    plan: PlanName | None = None
    """None only where there is a refusal."""
    planned_steps: int | None = None
    """stop.steps of the plan of the last attempt.  None: it is not known."""
    refusal: Refusal | None = None
    obstacle: Obstacle | None = None
    admission: Admission = Admission(AdmissionState.ADMITTED)
    has_queue: bool = False
    waits_for_all: bool = False
    """Whether the scheduler itself starts all pods or none."""
    is_predecessor_ending: bool = False
    progress: ProgressAnswer | UnreachableLead | None = None
    """What the lead pod just answered.  None: it was not asked."""
    spec_changes: str = ""
    """Changes of fields that do not change."""

    @cached_property
    def expected(self) -> Mapping[str, str]:
        """Pod name → worker group, of the gang of the current attempt."""
        return {
            names.pod_name(self.name, group.name, host, self.status.attempt): group.name
            for group in self.spec.worker_groups
            if group.elastic is None
            for host in range(group.replicas)
        }

    @cached_property
    def current(self) -> tuple[PodFacts, ...]:
        """Pods of the current attempt."""
        return tuple(pod for pod in self.pods if pod.name in self.expected)

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Names of pods of the current attempt that are not there."""
        result = {pod.name for pod in self.pods}
        return tuple(name for name in self.expected if name not in result)

    @cached_property
    def missing_services(self) -> tuple[str, ...]:
        """Names of pods of services that were there, and are not now."""
        result = {(pod.service, pod.start) for pod in self.service_pods}
        there = (service for service in self.status.services if service.start_time is not None)
        missing = (item for item in there if (item.name, item.start) not in result)
        return tuple(names.service_pod_name(self.name, item.name, item.start) for item in missing)

    @cached_property
    def _guests(self) -> Mapping[tuple[int | None, int], PodFacts]:
        return {(pod.guest, pod.start): pod for pod in self.guest_pods if pod.attempt == self.status.attempt}

    def guest(self, index: int, start: int) -> PodFacts | None:
        """The pod of the elastic group of the current attempt with this number and start."""
        return self._guests.get((index, start))

    @property
    def is_outgrown(self) -> bool:
        """Whether stop.steps was raised since the last attempt began."""
        return self.planned_steps is not None and self.planned_steps < self.spec.stop.steps

    def with_pods(self, pods: Iterable[PodFacts]) -> Situation:
        """A copy with these pods of the job."""
        result = tuple(pods)
        guests = tuple(pod for pod in result if pod.guest is not None)
        services = tuple(pod for pod in result if pod.service)
        gang = tuple(pod for pod in result if pod.guest is None and not pod.service)
        return replace(self, pods=gang, service_pods=services, guest_pods=guests)

    def with_status(self, **changes: Any) -> Situation:
        """A copy with these changes of the status, as if they had been written."""
        return replace(self, status=self.status.model_copy(update=changes))

    @property
    def timestamp(self) -> str:
        return timestamp(self.now)

    def after_a_pause(self, num_futile: int) -> str:
        """When to try again after n failures in a row without anything good, as the API writes it."""
        # Rounded up: a time is written in whole seconds, and a pause is a promise.
        return timestamp(self.now + _PAUSE.seconds(num_futile, self.chance) + 1)


class QueueAction(Enum):
    """What is said to the queue that a job waits in."""

    HOLD = auto()
    """The job wants to run, or runs: its objects are kept as they should be."""
    RELEASE = auto()
    """After an eviction no pod is left: the job queues again."""
    LEAVE = auto()
    """The job does not want to run for now: its objects go, and with them its place and its quota."""
    FINISH = auto()
    """The job has ended: its quota goes back."""
    NONE = auto()


GIVING_BACK = (QueueAction.RELEASE, QueueAction.LEAVE, QueueAction.FINISH)
"""What is said to a queue about a job that has no place any more, or none yet: its agents go."""


@dataclass(frozen=True)
class Deletion:
    """One pod to delete, or what KubeRay makes pods of."""

    name: str
    uid: str
    grace_seconds: int
    """0: by force, without waiting for its node."""
    kind: Server = "Pod"


@dataclass(frozen=True, order=True)
class GuestStart:
    """One pod of the elastic group to make."""

    index: int
    start: int


@dataclass(frozen=True)
class Decision:
    """What is written first, then done."""

    status: RLJobStatus
    claims: Claims = field(default_factory=dict)
    """By then part of `status`; of a phase, what differs from that phase's usual ones."""
    keeps_children: bool = False
    """Whether Service, plan and the like are made as they should be."""
    creates_pods: bool = False
    """Whether the missing pods of `status.attempt` are made, after everything they need."""
    starts_services: tuple[str, ...] = ()
    """Names of the services of which a pod is made, after everything it needs and before any of the gang."""
    starts_guests: tuple[GuestStart, ...] = ()
    """Pods of the elastic group that are made, after those of the gang."""
    deletions: tuple[Deletion, ...] = ()
    queue: QueueAction = QueueAction.NONE
    deletes_job: bool = False
    look_again_seconds: float | None = None
    """None: when something changes."""

    def claiming(self, type_: ConditionType, claim: Claim) -> Decision:
        """A copy with one more claim; one made already stays."""
        return replace(self, claims={type_: claim, **self.claims})

    def again_within(self, seconds: float | None) -> Decision:
        """A copy that looks again after `seconds` at the latest."""
        if seconds is None:
            return self
        known = self.look_again_seconds
        return replace(self, look_again_seconds=max(0.0, seconds if known is None else min(known, seconds)))


def earliest(times: Iterable[float]) -> float | None:
    """The first of the times, if there is any."""
    return min(times, default=None)
