"""`JobContext`: all that a job's children follow from, and which of Kueue's queues it waits in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.planning.plan import GroupPlan, Plan
from rljob_api.v1alpha1 import RLJob, RLJobSpec, ServiceSpec
from rljob_api.v1alpha1.infrastructure import WorkerGroupSpec
from rljob_operator.manifests.ceilings import QueueCeilings
from rljob_operator.manifests.settings import PodSettings

Manifest = dict[str, Any]
"""An object of the Kubernetes API as JSON."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


@dataclass(frozen=True)
class WrittenPlan:
    """A plan and the very text of it that pods have.

    Another version would write the same plan differently, with more or fewer fields: the text records what pods were
    made with, and its hash names it.
    """

    plan: Plan
    """As far as this version knows its fields."""
    text: str

    @staticmethod
    def of(plan: Plan) -> WrittenPlan:
        """As this version writes it."""
        return WrittenPlan(plan, plan.canonical_json())

    @staticmethod
    def read(text: str) -> WrittenPlan:
        """As some version wrote it: fields that are unknown here are passed over. Raises ValueError."""
        return WrittenPlan(Plan.model_validate(json.loads(text), extra="ignore"), text)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class Placement:
    """What a queue says about where a worker group may run."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    scheduling_gates: tuple[str, ...] = ()
    """Gates that the queue opens once it has chosen a node."""


@dataclass(frozen=True)
class AttemptImages:
    """Images that an attempt began with. Pods of its elastic group that come later have them, too, whatever the images
    of this operator are by then."""

    data_buffer: str
    generator: str
    """The image of workers of the elastic group."""


@dataclass(frozen=True)
class JobContext:
    """A job with everything that its children follow from."""

    job: RLJob
    uid: str
    namespace: str
    written: WrittenPlan
    """The plan of the attempt that runs; the job's spec may have moved on."""
    profiles: Mapping[str, AcceleratorProfile]
    pods: PodSettings = PodSettings()
    queues: QueueCeilings = QueueCeilings()
    avoided_nodes: tuple[str, ...] = ()
    """Nodes that pods made now should not have, if there are others."""
    attempt_images: AttemptImages | None = None
    """Set for pods that join an attempt."""

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def spec(self) -> RLJobSpec:
        return self.job.spec

    @property
    def plan(self) -> Plan:
        return self.written.plan

    @property
    def plan_hash(self) -> str:
        """A thousand pods carry it."""
        return self.written.hash

    @property
    def num_pods(self) -> int:
        """Pods of workers: one gang."""
        return sum(group.replicas for group in self.plan.gang)

    def group(self, name: str) -> WorkerGroupSpec:
        """The worker group of this name; KeyError when there is none."""
        for group in self.spec.worker_groups:
            if group.name == name:
                return group
        raise KeyError(name)

    def service(self, name: str) -> ServiceSpec:
        """The service of this name; KeyError when there is none."""
        for service in self.spec.services:
            if service.name == name:
                return service
        raise KeyError(name)

    def profile(self, group: GroupPlan) -> AcceleratorProfile:
        """What the group's accelerator needs."""
        return self.profiles[group.profile]

    def profile_of_service(self, service: ServiceSpec) -> AcceleratorProfile:
        """What the accelerator of each of its copies needs."""
        return self.profiles[service.worker_group.accelerator.profile]


def names_queue(context: JobContext) -> bool:
    """Whether the job asks for Kueue: by its label, as every other kind of job does, or by name."""
    return QUEUE_LABEL in context.job.metadata.labels or context.spec.scheduling.provider == "Kueue"


def is_queued(context: JobContext) -> bool:
    """Whether Kueue has a job that may be given to it: one that asks, or any where a queue is given to all."""
    automatic = context.spec.scheduling.provider == "Auto"
    return names_queue(context) or (automatic and bool(context.queues.default or context.queues.required))


def queue_of(context: JobContext) -> str | None:
    """The LocalQueue: the job's label, as for every other kind of job, `scheduling.queue`, or the default one."""
    own = context.job.metadata.labels.get(QUEUE_LABEL) or context.spec.scheduling.queue
    return own or context.queues.default or None
