"""What an administrator decides about the children of every job."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rljob_api.vocabulary.images import IMAGE
from rljob_api.vocabulary.model import ApiModel, Items
from rljob_api.vocabulary.quantity import QUANTITY

CPU_QUANTITY = r"^[0-9]+(\.[0-9]+)?m?$"


class ImageSettings(ApiModel):
    """Images by role.  A profile or a job's template may name another one."""

    worker: str = Field(default="rljob-worker:dev", pattern=IMAGE)
    """Workers on accelerators: torch with CUDA."""

    worker_cpu: str = Field(default="rljob-worker-cpu:dev", pattern=IMAGE)
    """Workers of the profile cpu."""

    worker_vllm: str = Field(default="rljob-worker-vllm:dev", pattern=IMAGE)
    """Workers on accelerators that generate with vLLM."""

    worker_vllm_cpu: str = Field(default="rljob-worker-vllm-cpu:dev", pattern=IMAGE)
    """Workers of the profile cpu that generate with vLLM."""

    data_buffer: str = Field(default="rljob-databuffer:dev", pattern=IMAGE)
    """The sidecar."""

    serve: str = Field(default="rljob-serve:dev", pattern=IMAGE)
    """Models served beside a job: Ray Serve, on CPUs."""

    serve_cuda: str = Field(default="rljob-serve-cuda:dev", pattern=IMAGE)
    """Models served beside a job: Ray Serve, on accelerators: torch with CUDA."""

    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When a node pulls them."""

    pull_secrets: Items[str] = ()
    """Secrets with which nodes pull them, besides those of the job. They are looked up in the job's namespace."""


class WorkerSettings(ApiModel):
    """What a worker's container asks for, unless the job's template says otherwise."""

    cpu: str = Field(default="1", pattern=CPU_QUANTITY)
    """CPUs requested per worker process. Its threads are as many, at least one."""

    memory: str = Field(default="2Gi", pattern=QUANTITY)
    """Memory requested per worker process. There is no limit: what a model needs is known to the user."""

    shared_memory: str = Field(default="4Gi", pattern=QUANTITY)
    """The most that /dev/shm may hold, which collectives and data loaders use. It counts as the worker's memory."""


class DataBufferSettings(ApiModel):
    """What the data buffer's container asks for."""

    cpu: str = Field(default="250m", pattern=CPU_QUANTITY)
    """CPUs requested."""

    memory_overhead: str = Field(default="512Mi", pattern=QUANTITY)
    """Memory besides the arena of `dataBuffer.memory`; request and limit are their sum."""


class MonitoringSettings(ApiModel):
    """How a job's pods are scraped."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of a job's PodMonitor, such as the release label that a Prometheus selects by."""

    interval: str = Field(default="15s", pattern=r"^[0-9]+(ms|s|m)$")
    """How often a pod is scraped."""


class NetworkPolicySettings(ApiModel):
    """Whether a job's pods are closed to everybody else."""

    enabled: bool = False
    """Whether each job gets a NetworkPolicy: its pods talk to each other, and only those below reach their metrics."""

    metrics_from: Items[dict[str, Any]] = ()
    """NetworkPolicy peers that may read metrics and progress: the operator, and Prometheus."""

    kube_ray_from: Items[dict[str, Any]] = ()
    """NetworkPolicy peers that may ask the Ray of a RayService how it is: KubeRay's operator."""


class GangSettings(ApiModel):
    """The schedulers and queues that start all pods of a job together."""

    volcano_scheduler: str = "volcano"
    """`schedulerName` of Volcano."""

    coscheduling_scheduler: str = "scheduler-plugins-scheduler"
    """`schedulerName` of the scheduler with the coscheduling plugin."""

    native: bool = False
    """Whether Kubernetes' own workload API is used where it is served; its version changes still."""


class PodSettings(ApiModel):
    """What an administrator decides about every job's children."""

    images: ImageSettings = ImageSettings()
    """Images."""

    user_id: int = Field(default=65532, ge=1)
    """User and group of every container; never root."""

    worker: WorkerSettings = WorkerSettings()
    """The worker's container."""

    data_buffer: DataBufferSettings = DataBufferSettings()
    """The sidecar."""

    env: dict[str, str] = Field(default_factory=dict)
    """Environment of every worker, such as a mirror of the model hub; those of profiles and jobs win."""

    node_failure_seconds: int = Field(default=30, ge=0)
    """How long pods stay bound to a node that does not answer, before they are evicted."""

    topology_aliases: dict[str, str] = Field(default_factory=dict)
    """Short names of node labels that a job's `topology` may use, such as `rack`."""

    monitoring: MonitoringSettings = MonitoringSettings()
    """PodMonitors."""

    network_policy: NetworkPolicySettings = NetworkPolicySettings()
    """NetworkPolicies."""

    gang: GangSettings = GangSettings()
    """Gang schedulers."""

    ray_services: bool = False
    """Whether models beside jobs are RayServices, of which KubeRay makes a pod for each copy, rather than one pod each
    of the operator's own."""
