"""Where a job runs: worker groups, data buffer, failure policy, and what only a cluster looks at."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rljob_api.model import ApiModel, Items

GROUP_NAME = r"^[a-z][a-z0-9]{0,11}$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"


class AcceleratorSpec(ApiModel):
    """The accelerators of one pod."""

    profile: str = Field(default="cpu", pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    """The accelerator profile, which says resource name, selectors, environment and collectives. Default
    cpu."""

    count: int = Field(default=1, ge=1, le=64)
    """Accelerators per pod; one worker process runs on each. With the profile cpu: worker processes per
    pod. Default 1."""


class TopologySpec(ApiModel):
    """Node label keys that pods of a group should share; at most one of the two. Only a cluster looks at
    it."""

    preferred: str | None = None
    """Keep the pods together under one value of this label where that is possible. Unset: no wish."""

    required: str | None = None
    """Start only when all pods fit under one value of this label. Unset: no demand."""


class WorkerGroupSpec(ApiModel):
    """Identical pods, one per host."""

    name: str = Field(pattern=GROUP_NAME)
    """The name that stages use; part of the pods' names. Lower-case letters and digits, at most 12."""

    replicas: int = Field(default=1, ge=1, le=16384)
    """Pods, which is hosts. Locally: process trees. Default 1."""

    accelerator: AcceleratorSpec = AcceleratorSpec()
    """The accelerators of one pod."""

    topology: TopologySpec | None = None
    """Node labels that the pods should share. Unset: no wish."""

    template: dict[str, Any] = Field(default_factory=dict)
    """A pod template merged over the generated one: images, resources, volumes, selectors. Only a cluster
    looks at it."""


class CodeSpec(ApiModel):
    """Where the user's Python is, when it is not in the image; at most one of the two."""

    config_map: str | None = None
    """A ConfigMap whose entries are modules, put on PYTHONPATH."""

    persistent_volume_claim: str | None = None
    """A volume claim whose root is put on PYTHONPATH."""


class StorageSpec(ApiModel):
    """Where data is read and results are written."""

    persistent_volume_claim: str = Field(min_length=1)
    """The volume claim mounted at /workspace. Relative paths are looked up there in a pod, and beside the
    YAML file locally."""


class EnvVar(ApiModel):
    """An environment variable of every worker, as in a pod's container."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The variable."""

    value: str | None = None
    """Its value. Unset: valueFrom says it."""

    value_from: dict[str, Any] | None = None
    """Where its value comes from, as in Kubernetes: secretKeyRef, configMapKeyRef, fieldRef. Only a
    cluster looks at it."""


class DataBufferSpec(ApiModel):
    """The sidecar that exchanges rows between pods."""

    memory: str = Field(default="1Gi", pattern=QUANTITY)
    """Shared memory per host, such as `16Gi`; reserved at start. Default 1Gi."""

    spill: str | None = None
    """A directory for rows that do not fit in memory. Unset: they wait, up to the deadline."""

    tls: bool = False
    """Whether data buffers talk over mutual TLS. Default false."""

    deadline_seconds: float = Field(default=600, gt=0)
    """How long a worker waits for rows or for space before it names who is late and gives up, in seconds.
    Default 600."""


class FailureRule(ApiModel):
    """What to do about one kind of failure; the first rule that matches decides."""

    on_pod_conditions: Items[str] = ()
    """Matches a pod that failed with one of these conditions set, such as DisruptionTarget. Empty: any."""

    on_exit_codes: Items[int] = ()
    """Matches when the gang's exit code is one of these. Empty: any."""

    action: Literal["Restart", "Stop"]
    """Whether the gang restarts from its last checkpoint or the job stops."""

    counted: bool = True
    """Whether a restart counts against maxRestarts. Default true."""


DISRUPTION = FailureRule(on_pod_conditions=("DisruptionTarget",), action="Restart", counted=False)


class FailurePolicySpec(ApiModel):
    """When a gang that failed starts again."""

    max_restarts: int = Field(default=3, ge=0)
    """Restarts before the job fails. Default 3."""

    rules: Items[FailureRule] = (DISRUPTION,)
    """Exceptions, first match first. Default: a disrupted pod restarts the gang and is not counted."""


class LifecycleSpec(ApiModel):
    """Deadlines and cleaning up. Only a cluster looks at it."""

    pending_seconds: int = Field(default=7200, ge=1)
    """How long pods may wait for a place before the job fails. Default 7200."""

    stall_seconds: int = Field(default=3600, ge=1)
    """How long the step may stand still before the gang restarts. Default 3600."""

    ttl_seconds_after_finished: int | None = Field(default=None, ge=0)
    """When a finished job is deleted, in seconds after its end. Unset: never."""

    clean_pod_policy: Literal["None", "Running", "All"] = "Running"
    """Which pods are deleted when the job ends: none, those still running, or all. Default Running."""


class SchedulingSpec(ApiModel):
    """How pods find their hosts. Only a cluster looks at it."""

    provider: Literal["Auto", "None", "Kueue", "Volcano", "Koordinator"] = "Auto"
    """Who starts the pods all together or not at all. `Auto` takes what the cluster has. Default Auto."""

    queue: str | None = None
    """The queue to wait in. Unset: the provider's default."""

    priority_class_name: str | None = None
    """The pods' priority class. Unset: the cluster's default."""


class MonitoringSpec(ApiModel):
    """Where metrics go besides metrics.jsonl and the Prometheus port."""

    pod_monitor: bool = False
    """Whether a PodMonitor is made for the pods. Only a cluster looks at it. Default false."""

    trackers: Items[Literal["TensorBoard", "WandB", "MLflow"]] = ()
    """Trackers that get every metric. Default: none."""
