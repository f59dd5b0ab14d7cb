"""What a decision knows of the pods of a job, of what its lead pod says of itself, and of its queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_operator.manifests.context import Placement
from rljob_operator.states.situation.conditions import Reason

Server = Literal["Pod", "RayService"]


@dataclass(frozen=True)
class Termination:
    """A container that ended."""

    container: str
    """Empty: the pod ended without any of its containers having run."""
    exit_code: int
    reason: str
    """As Kubernetes says it: OOMKilled, Error, Evicted."""
    message: str
    """Last words."""
    step: int | None = None
    """The last step it finished, where it says so."""
    checkpoint: int | None = None
    """The step of the last checkpoint, where it says so."""
    at: float | None = None
    """When, where its kubelet says so."""


@dataclass(frozen=True)
class Stuck:
    """A container that cannot start."""

    container: str
    reason: Reason
    """Reason for a condition of the job."""
    message: str


@dataclass(frozen=True)
class PodFacts:
    """One pod of the job."""

    name: str
    uid: str
    group: str
    attempt: int
    service: str = ""
    """The service that it serves.  Empty: it is one of a gang."""
    guest: int | None = None
    """The pod's number in an elastic group.  None: it is of no such group."""
    start: int = 0
    """How many pods have served the service, or had the number in the elastic group."""
    kind: Server = "Pod"
    """What it is for the cluster: a RayService stands for the pods that KubeRay makes of it."""
    plan_hash: str = ""
    node: str = ""
    address: str = ""
    """The pod's IP address."""
    is_ready: bool = False
    is_cut_off: bool = False
    """Whether its node no longer speaks for it: unready though its containers were last seen ready."""
    is_over: bool = False
    """Whether it is Succeeded or Failed: nothing of it runs any more."""
    ends_at: float | None = None
    """When its grace period is over.  None: nobody deletes it."""
    grace_seconds: int | None = None
    """How long that period is: a deletion may make it shorter, and nothing else."""
    deletion_grace_seconds: int | None = None
    """How long it is to be at most once its job is deleted.  None: nobody said."""
    is_out_of_sight: bool = False
    """Whether somebody took the label off by which it is found: it is there, and nobody but its name leads to it."""
    finalizers: tuple[str, ...] = ()
    """What must be taken off before it goes, by whoever put it on."""
    ended: Termination | None = None
    """How its worker ended, or whatever else ended the pod."""
    num_buffer_restarts: int = 0
    buffer_ended: Termination | None = None
    """How its data buffer last ended, when that was started again."""
    stuck: Stuck | None = None
    says: str = ""
    """For a RayService: how the application in it is that does not answer."""
    unschedulable: str = ""
    """Why the scheduler has no node for it."""
    disruption: str = ""
    """What the cluster does to it: PreemptionByScheduler, EvictionByEvictionAPI.  Empty: nothing."""

    @property
    def is_done(self) -> bool:
        """Whether its work is done."""
        return self.ended is not None and self.ended.exit_code == ExitCode.DONE


@dataclass(frozen=True)
class ProgressAnswer:
    """What `/progress` of the lead worker's pod says."""

    phase: str = "Starting"
    """Starting, Running or Finished."""

    attempt: int = 0
    """The attempt that answers."""

    step: int = 0
    """The last finished step."""

    total_steps: int = 0
    """stop.steps. 0: not said yet."""

    reward: float | None = None
    """Mean reward of the last step."""

    step_seconds: float | None = None
    """Mean duration of the recent steps."""

    checkpoint_step: int | None = None
    """Step of the last committed checkpoint."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the last step, by their names in metrics.jsonl."""

    warnings: tuple[str, ...] | None = None
    """What metrics say of a policy that does not learn. None: not said."""


@dataclass(frozen=True)
class UnreachableLead:
    """The pod did not answer."""

    reason: str
    """Why, for a condition's message."""


@dataclass(frozen=True)
class AgentsFacts:
    """Pods of agents beside the job."""

    is_there: bool = False
    """Whether there is the Deployment that makes them."""
    wanted: int = 0
    ready: int = 0
    reason: Reason | None = None
    """Reason for a condition of the job, where something keeps some of them."""
    message: str = ""
    """What that is, and which pod."""


class AdmissionState(StrEnum):
    """What a queue says of a job."""

    ADMITTED = "Admitted"
    WAITING = "Waiting"
    EVICTED = "Evicted"
    SPENT = "Spent"
    """Its place was given back for good: another has to be asked for."""


@dataclass(frozen=True)
class Admission:
    """Whether pods may be made, why not, and where they may run."""

    state: AdmissionState
    message: str = ""
    placements: Mapping[str, Placement] = field(default_factory=dict)
    """By worker group; groups that may run anywhere are left out."""
    unplaceable: str = ""
    """Why it is not known where pods may run, so that none can be made.  Empty: it is."""
