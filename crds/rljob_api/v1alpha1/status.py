"""`RLJob.status`: what the operator reports, and all that it remembers.  An operator that starts afresh knows the
attempt, the counters, the clocks and the plan from here, and the rest from what it sees."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from rljob_api.vocabulary.model import ApiModel, Items

Phase = Literal["Pending", "Starting", "Running", "Restarting", "Suspending", "Suspended", "Succeeded", "Failed"]

LIVING_PHASES: tuple[Phase, ...] = ("Starting", "Running")
"""Those in which pods of an attempt are meant to be there."""
ENDED_PHASES: tuple[Phase, ...] = ("Succeeded", "Failed")
"""Those that no job leaves."""

ConditionType = Literal[
    "Accepted",
    "Suspended",
    "QuotaReserved",
    "Scheduled",
    "ServicesReady",
    "GeneratorsReady",
    "AgentsReady",
    "Ready",
    "Progressing",
    "Healthy",
    "Degraded",
    "Complete",
    "Failed",
]

MAX_PROGRESS_METRICS = 32


def _a_time(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"{text} has no time zone; write it as 2026-01-31T12:00:00Z")
    return text


Time = Annotated[str, AfterValidator(_a_time)]
"""As the API writes it: `2026-01-31T12:00:00Z`."""


class Condition(ApiModel):
    """One thing that is true, false or unknown of a job, as in every Kubernetes object."""

    type: ConditionType
    """What is said."""

    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""

    reason: str = Field(pattern=r"^[A-Z][A-Za-z0-9]*$", max_length=128)
    """Why, as one word; docs/conditions.md lists them all."""

    message: str = Field(default="", max_length=4096)
    """Why, in a sentence."""

    last_transition_time: Time
    """When `status` last changed."""

    observed_generation: int = 0
    """The generation of the spec it was said of."""


class WorkerGroupStatus(ApiModel):
    """Pods of one worker group, of the current attempt."""

    name: str
    """The group."""

    desired: int = 0
    """Pods that the spec asks for."""

    scheduled: int = 0
    """Pods that have a node."""

    ready: int = 0
    """Pods whose containers are ready."""

    failed: int = 0
    """Pods that failed."""

    buffer_restarts: int = 0
    """Restarts of data buffers, which lose their rows."""


class ServiceStatus(ApiModel):
    """The pod of one service, which lives longer than an attempt."""

    name: str
    """The service."""

    start: int = Field(default=1, ge=1)
    """The number of its pod, the present one or the next."""

    start_time: Time | None = None
    """When that pod was first seen. Unset: it is to be made."""

    ready: bool = False
    """Whether it answers."""

    ready_time: Time | None = None
    """When it first did. Unset: not yet."""

    failures: int = Field(default=0, ge=0)
    """How often it ended by itself: with failurePolicy.maxRestarts of them behind it, the next ends the job."""

    futile_starts: int = Field(default=0, ge=0)
    """Pods in a row that ended before they were ready; each doubles the pause before the next."""

    next_start_time: Time | None = None
    """Before then no pod is made. Unset: one may be made at once."""

    stopped: bool = False
    """Whether no other start follows, and the job ends."""

    message: str = Field(default="", max_length=2048)
    """How the pod before ended, until one is ready again."""


class GeneratorStatus(ApiModel):
    """One pod of the elastic group, of the current attempt, once there is something to remember of it."""

    index: int = Field(ge=0)
    """Its number in the group."""

    start: int = Field(default=1, ge=1)
    """How many pods have had this number, with the present one or the next."""

    ready: bool = False
    """Whether the pod of this start has been ready."""

    futile_starts: int = Field(default=0, ge=0)
    """Pods in a row that ended before they were ready; each doubles the pause before the next."""

    next_start_time: Time | None = None
    """Before then no pod is made. Unset: one may be made at once."""

    message: str = Field(default="", max_length=256)
    """How the pod before ended, until one is ready again."""


class MetricStatus(ApiModel):
    """One metric of the last step, as text: the API has no floating-point numbers that survive a round trip."""

    name: str
    """As in metrics.jsonl: `reward/mean`."""

    value: str
    """Four significant digits."""


class ProgressStatus(ApiModel):
    """How far training is, as the lead worker says."""

    step: int = 0
    """The last finished step."""

    total_steps: int = 0
    """stop.steps."""

    percent: int = Field(default=0, ge=0, le=100)
    """Steps done, of all steps."""

    estimated_remaining_seconds: int | None = None
    """Remaining steps at the pace of the recent ones. Unset: not known yet."""

    reward: str | None = None
    """Mean reward of the last step."""

    metrics: Items[MetricStatus] = Field(default=(), max_length=MAX_PROGRESS_METRICS)
    """The most telling metrics of the last step."""

    checkpoint_step: int | None = None
    """Step of the last committed checkpoint."""

    last_step_time: Time | None = None
    """When `step` last grew."""


class FailureStatus(ApiModel):
    """The failure that ended an attempt."""

    attempt: int
    """Which attempt."""

    pod: str = ""
    """The pod that explains it."""

    container: str = ""
    """The container of that pod."""

    exit_code: int | None = None
    """Its exit code; docs/conditions.md says what each means."""

    reason: str = ""
    """As Kubernetes says it: OOMKilled, Error, DeadlineExceeded."""

    cause: str = ""
    """As the conditions say it: PodFailed, DataBufferRestarted, Stalled."""

    message: str = Field(default="", max_length=4096)
    """Last words of the worker."""

    time: Time
    """When it was noticed. While the attempt is the current one, its pods are given a moment to say more."""

    disruption: str = ""
    """What happened to the pod from outside: EvictionByEvictionAPI, PreemptionByScheduler, PodDeleted. Empty: nothing,
    the pod failed by itself."""


class BugStatus(ApiModel):
    """A failure with exit code 70 that was answered by a restart."""

    attempt: int
    """Which attempt."""

    step: int = 0
    """The last step it had finished."""

    checkpoint_step: int | None = None
    """Step of the last committed checkpoint then."""


class SuspectNode(ApiModel):
    """A node on which a worker of the job was killed, crashed or lost its disk."""

    name: str
    """The node."""

    failures: int = Field(ge=1)
    """How often, not counting what was forgotten. From two on, the next attempts avoid the node."""

    last_time: Time
    """When last. An hour later it is forgotten."""


class RLJobStatus(ApiModel):
    """What the operator reports of a job."""

    observed_generation: int = 0
    """The generation of the spec that the rest speaks of."""

    phase: Phase = "Pending"
    """Everything below in one word, for people."""

    attempt: int = 0
    """The current life of the gang; 0 before the first."""

    restarts: int = 0
    """Attempts that failed and were followed by another."""

    counted_restarts: int = 0
    """Those of them that count against failurePolicy.maxRestarts."""

    plan_hash: str | None = None
    """SHA-256 of the Plan that runs."""

    plan_config_map: str | None = None
    """The ConfigMap that holds it."""

    ready: str = "0/0"
    """Ready pods, of all."""

    start_time: Time | None = None
    """When pods were first created."""

    completion_time: Time | None = None
    """When the job ended."""

    active_seconds: int = 0
    """Seconds with all pods ready, over all attempts; the stretch that began at readyTime is added when it ends."""

    pods_created_time: Time | None = None
    """When every pod of the attempt had been made. Unset: they are being made, or there is no attempt."""

    pending_time: Time | None = None
    """Since when the job waits for all its pods to be ready, which lifecycle.pendingSeconds limits. Unset: it does
    not wait, or it waits in a queue."""

    ready_time: Time | None = None
    """Since when all pods of the attempt are ready. Unset: they have not been yet."""

    next_attempt_time: Time | None = None
    """Before then no attempt begins. Unset: one may begin at once."""

    futile_attempts: int = Field(default=0, ge=0)
    """Attempts in a row that ended before all their pods were ready; each doubles the pause before the next."""

    conditions: Items[Condition] = Field(default=(), max_length=32)
    """What is true of the job now."""

    worker_groups: Items[WorkerGroupStatus] = Field(default=(), max_length=8)
    """Pods by group."""

    generators: int = Field(default=0, ge=0)
    """Pods of the elastic worker group that are ready; 0 without one."""

    generators_wanted: int = Field(default=0, ge=0)
    """As many as there are to be of them now: spec.generators, and 0 while no attempt runs."""

    generators_lost: int = Field(default=0, ge=0)
    """Pods of this group that ended before their attempt did, over all attempts, without those that were scaled away.
    Each was replaced by another."""

    generators_absent_time: Time | None = None
    """Since when the attempt waits because none of them is ready, which rollout.generatorsDeadlineSeconds limits.
    Unset: one is ready, or the attempt is not that far."""

    generator_pods: Items[GeneratorStatus] = Field(default=(), max_length=1024)
    """Those of which there is something to remember."""

    generator_selector: str | None = Field(default=None, max_length=253)
    """The labels of these pods, for autoscalers. Unset: no group is elastic."""

    services: Items[ServiceStatus] = Field(default=(), max_length=16)
    """Pods of services."""

    progress: ProgressStatus | None = None
    """How far training is. Unset: the lead worker has not answered yet."""

    last_failure: FailureStatus | None = None
    """Why the last attempt that failed did."""

    suspect_nodes: Items[SuspectNode] = Field(default=(), max_length=16)
    """Nodes on which workers failed lately, the latest last."""

    last_bug: BugStatus | None = None
    """Where the last attempt ended, if with exit code 70: met there again, the job stops."""
