"""Where a job runs: worker groups, data buffer, failure policy, and what only a cluster looks at."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rljob_api.vocabulary.model import ApiModel, Items, PartName
from rljob_api.vocabulary.quantity import QUANTITY

GROUP_NAME = r"^[a-z][a-z0-9]{0,11}$"
EXTENDED_RESOURCE = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$"


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Quantity = Annotated[
    str, Field(pattern=QUANTITY, json_schema_extra={"x-kubernetes-int-or-string": True}), BeforeValidator(_as_text)
]
"""A number of bytes, as a text such as `16Gi` or a whole number; always a text in Python."""


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


class RDMASpec(ApiModel):
    """The RDMA devices of one pod. Only a cluster looks at it."""

    resource: str = Field(pattern=EXTENDED_RESOURCE, max_length=253)
    """The extended resource that the device plugin advertises, such as `rdma/hca_shared_devices_a`."""

    count: int = Field(default=1, ge=1, le=64)
    """How many of them a pod asks for. Default 1."""


class ElasticSpec(ApiModel):
    """How many pods an elastic group may have."""

    min: int = Field(ge=1, le=1024)
    """The least that spec.generators may ask for, at least 1."""

    max: int = Field(ge=1, le=1024)
    """The most that spec.generators may ask for, not below min. An attempt has certificates for so many."""


class WorkerGroupSpec(ApiModel):
    """Identical pods, one per host."""

    name: str = Field(pattern=GROUP_NAME, json_schema_extra={"maxLength": 12})
    """The name that stages use; part of the pods' names. Lower-case letters and digits, at most 12."""

    replicas: int = Field(default=1, ge=1, le=16384)
    """Pods, which is hosts. Locally: process trees. An elastic group has none of its own. Default 1."""

    elastic: ElasticSpec | None = None
    """For the group that generates: its pods come and go one by one while the others train, as many as
    spec.generators says; the loss of one restarts nothing. At most one group: docs/spot-nodes.md. Unset: a fixed
    number of pods, all of which the job needs."""

    accelerator: AcceleratorSpec = AcceleratorSpec()
    """The accelerators of one pod."""

    topology: TopologySpec | None = None
    """Node labels that the pods should share. Unset: no wish."""

    rdma: RDMASpec | None = None
    """RDMA devices for collectives between hosts. Unset: none."""

    template: dict[str, Any] = Field(default_factory=dict)
    """A pod template merged over the generated one: images, resources, volumes, selectors. Only a cluster
    looks at it."""


class CodeSpec(ApiModel):
    """Where the user's Python is, when it is not in the image; at most one of the two."""

    config_map: str | None = None
    """A ConfigMap whose entries are modules."""

    persistent_volume_claim: str | None = None
    """A volume claim with modules and packages in its root."""


class ObjectStoreSpec(ApiModel):
    """A folder of a bucket."""

    uri: str = Field(min_length=1, max_length=1024)
    """The folder, such as `s3://bucket/runs`. Checkpoints go to `URI/NAMESPACE/NAME/checkpoints`, locally to
    `URI/NAME/checkpoints`. The store must know conditional puts, which is tried when the job starts."""

    secret: str | None = Field(default=None, min_length=1, max_length=253)
    """A Secret in the job's namespace whose entries become variables of every worker, such as AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL; `env` wins over it. Locally the shell's environment has
    them. Unset: none, for a store that knows the pods' service account."""


class StorageSpec(ApiModel):
    """Where data is read and results are written; at least one of the two."""

    persistent_volume_claim: str | None = Field(default=None, min_length=1)
    """The volume claim mounted at /workspace. Relative paths are looked up there in a pod, and beside the
    YAML file locally. Unset: the pod's own disk, where metrics and samples live and die with it."""

    object_store: ObjectStoreSpec | None = None
    """Where checkpoints go, in place of the volume. Unset: they go to the volume."""


class KeySelector(ApiModel):
    """One entry of a Secret or a ConfigMap."""

    name: str = Field(min_length=1, max_length=253)
    """The object, in the job's namespace."""

    key: str = Field(min_length=1, max_length=253)
    """Its entry."""

    optional: bool = False
    """Whether a pod starts, without the variable, when there is no such entry. Default false."""


class FieldSelector(ApiModel):
    """A field of the pod."""

    field_path: str = Field(min_length=1, max_length=316)
    """The field, such as `spec.nodeName`."""

    api_version: str | None = Field(default=None, max_length=64)
    """The version of the pod's schema that the path is written in. Unset: v1."""


class ResourceFieldSelector(ApiModel):
    """A resource of a container of the pod."""

    resource: str = Field(min_length=1, max_length=253)
    """The resource, such as `limits.memory`."""

    container_name: str | None = Field(default=None, max_length=63)
    """The container. Unset: the worker."""

    divisor: Quantity | None = None
    """The unit of the value, such as `1Mi`. Unset: 1."""


class EnvVarSource(ApiModel):
    """Where the value of a variable comes from; exactly one of the four."""

    secret_key_ref: KeySelector | None = None
    """An entry of a Secret."""

    config_map_key_ref: KeySelector | None = None
    """An entry of a ConfigMap."""

    field_ref: FieldSelector | None = None
    """A field of the pod."""

    resource_field_ref: ResourceFieldSelector | None = None
    """A resource of a container of the pod."""


class EnvVar(ApiModel):
    """An environment variable of every worker, as in a pod's container."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=253)
    """The variable."""

    value: str | None = Field(default=None, max_length=32768)
    """Its value. Unset: valueFrom says it."""

    value_from: EnvVarSource | None = None
    """Where its value comes from, as in Kubernetes. Only a cluster looks at it."""


class SpillSpec(ApiModel):
    """A file on local disk for rows that do not fit in memory."""

    limit: Quantity
    """Bytes of disk per host, such as `64Gi`; reserved at start, on a file system that can (ext4, XFS)."""

    directory: str | None = Field(default=None, pattern=r"^/", max_length=1024)
    """A directory that exists, such as a disk that the template mounts in both containers. Unset: a volume of the
    pod's own, an `emptyDir` on the node's disk; locally `spill` in the run's directory."""


class DataBufferSpec(ApiModel):
    """The sidecar that exchanges rows between pods."""

    memory: Quantity = "1Gi"
    """Shared memory per host, such as `16Gi`; reserved at start. A job whose rows do not fit when they are longest is
    refused with the size they take. Default 1Gi."""

    spill: SpillSpec | None = None
    """Where rows go that do not fit in memory. Weights stay in memory. Unset: rows wait, up to the deadline."""

    tls: bool = False
    """Whether data buffers of different hosts talk over mutual TLS, with certificates that every attempt issues anew.
    Collectives of an engine stay as they are. Default false."""

    deadline_seconds: float = Field(default=600, gt=0)
    """How long a worker waits for rows or for space before it names who is late and gives up, in seconds.
    Default 600."""


class FailureRule(ApiModel):
    """What to do about one kind of failure; the first rule that matches decides."""

    on_pod_conditions: Items[str] = Field(default=(), max_length=16)
    """Matches a pod that failed with one of these conditions set, such as DisruptionTarget. Empty: any."""

    on_exit_codes: Items[int] = Field(default=(), max_length=64)
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

    rules: Items[FailureRule] = Field(default=(DISRUPTION,), max_length=32)
    """Exceptions, first match first. Default: a disrupted pod restarts the gang and is not counted."""


class SuccessPolicySpec(ApiModel):
    """Whose end is the end of the job. Only a cluster looks at it."""

    groups: Items[str] = Field(default=(), max_length=8)
    """The worker groups that must all have ended well. Empty: every group."""


class LifecycleSpec(ApiModel):
    """Deadlines and cleaning up. Only a cluster looks at it."""

    pending_seconds: int = Field(default=7200, ge=1)
    """How long pods may wait for a place before the job fails. Default 7200."""

    active_seconds: int | None = Field(default=None, ge=1)
    """How long the job may run, over all attempts, before it fails; stop.activeSeconds ends it well instead.
    Unset: for ever."""

    stall_seconds: int = Field(default=3600, ge=1)
    """How long the step may stand still before the gang restarts; while an attempt loads, up to its first step,
    pendingSeconds where that is longer. Default 3600."""

    force_delete_seconds: int = Field(default=120, ge=1)
    """How long after its grace period a pod on a dead node may go on terminating before it is deleted by force.
    Default 120."""

    termination_grace_seconds: int = Field(default=600, ge=1)
    """How long a pod has for its checkpoint when the job is suspended or the node is drained. Default 600."""

    deletion_grace_seconds: int = Field(default=20, ge=1)
    """How long a pod has when the job is deleted, where terminationGraceSeconds is not shorter: too little for most
    checkpoints. An attempt keeps the value with which it began. Default 20."""

    ttl_seconds_after_finished: int | None = Field(default=None, ge=0)
    """When a finished job is deleted, in seconds after its end. Unset: never."""

    clean_pod_policy: Literal["None", "Running", "All"] = "Running"
    """Which pods are deleted when the job ends: none, those still running, or all. Default Running."""


class SchedulingSpec(ApiModel):
    """How pods find their hosts. Only a cluster looks at it."""

    provider: Literal["Auto", "None", "Kueue", "Volcano", "Coscheduling", "Native"] = "Auto"
    """Who starts the pods all together or not at all: `Kueue`, `Volcano`, `Coscheduling` (the scheduler plugin),
    `Native` (the workload API of Kubernetes), or `None`: the operator itself deletes a gang that does not find
    all its places in time. `Auto` takes what the cluster has. Default Auto."""

    queue: str | None = Field(default=None, max_length=253)
    """The queue to wait in. Unset: the provider's default."""

    priority_class_name: str | None = Field(default=None, max_length=253)
    """The pods' priority class. Unset: the cluster's default."""

    timeout_seconds: int = Field(default=600, ge=1)
    """How long a gang of which some pods have a place may wait for the others before all give theirs back and
    try again. Default 600."""


class MonitoringSpec(ApiModel):
    """Where metrics go besides metrics.jsonl and the Prometheus port."""

    pod_monitor: bool = False
    """Whether a PodMonitor is made for the pods. Only a cluster looks at it. Default false."""

    trackers: Items[PartName] = Field(default=(), max_length=8)
    """Trackers that get every metric: TensorBoard, WandB, MLflow, or one that an installed package brings
    (docs/extending.md). A tracker that is slow, or fails, costs no step: that is warned about. A resumed
    run goes on in the tracker's same run. `WandB` reads WANDB_API_KEY and its other variables (WANDB_PROJECT,
    WANDB_MODE), `MLflow` MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME: set them in `env`. TensorBoard's files are
    always written. Default: none."""

    artifacts: Items[Literal["Samples", "Files", "Checkpoints"]] = Field(default=("Samples",), max_length=3)
    """What trackers get besides metrics and the job: `Samples`, a table of each step's sample rows; `Files`, at the end
    job, plan, metrics and samples as files; `Checkpoints`, each one that is committed, which is large. Default:
    Samples."""
