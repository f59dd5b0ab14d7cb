"""`Ceilings`: what an administrator lets no job go beyond, whatever its templates ask for.

`beyond` holds them against the pods that would be made. The chart renders ValidatingAdmissionPolicies from the same
values (`charts/rljob/templates/ceilings.yaml`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rljob_api.vocabulary.model import ApiModel, Items

NOT_ACCELERATORS = (
    "rdma/",
    "vpc.amazonaws.com/efa",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-cores",
)


class QueueCeilings(ApiModel):
    """Which of Kueue's queues jobs wait in."""

    default: str = Field(default="", max_length=253)
    """The LocalQueue, of the job's namespace, for a job with `scheduling.provider: Auto` that names none. Empty: such a
    job waits in none."""

    required: bool = False
    """Whether every job waits in a queue. One that names none, and gets none by default, is refused."""

    names: Items[str] | None = None
    """LocalQueues that jobs may wait in, besides the default one. null: any."""


class Ceilings(ApiModel):
    """What no job goes beyond. A list that is null is not a ceiling, an empty one admits nothing. Where there is any
    ceiling, pods have no fields but those in files/ceilings.yaml of the chart and extraFields."""

    pod_security: Literal["Privileged", "Baseline", "Restricted"] = "Privileged"
    """The Pod Security Standard that pods keep, whatever their namespace enforces. Privileged: any."""

    pod_security_version: str = Field(default="v1.34", pattern=r"^v1\.(2[5-9]|3[0-7])$")
    """The version of that standard, from v1.25 to v1.37. Since v1.35 root is admitted in a pod with `hostUsers: false`:
    for clusters whose nodes all have user namespaces."""

    host_network: bool = True
    """Whether pods may use the network of their node."""

    privileged: bool = True
    """Whether containers may be privileged."""

    api_tokens: bool = True
    """Whether pods may have a token of their service account."""

    host_paths: Items[str] | None = None
    """Folders of nodes that pods may mount, with all that is below them."""

    images: Items[str] | None = None
    """How the names of images, also of those in volumes, may begin, such as `registry.example.com/ml/`."""

    image_digests: bool = False
    """Whether every image must be named by digest, `NAME@sha256:…`: a tag may be another image tomorrow."""

    service_accounts: Items[str] | None = None
    """Service accounts that pods may have; one that names none has `default`."""

    priority_classes: Items[str] | None = None
    """Priority classes that pods may name; one that names none is admitted."""

    secrets: Items[str] | None = None
    """Secrets that pods may read, in volumes and variables, besides those that the operator makes for their job."""

    tolerations: Items[str] | None = None
    """Keys of the taints that pods may tolerate, besides those of nodes that fail. A toleration of every taint has none
    and is refused."""

    runtime_classes: Items[str] | None = None
    """Runtime classes that pods may name; one that names none is admitted."""

    schedulers: Items[str] | None = None
    """Schedulers that pods may name, besides the default one and those of settings.pods.gang."""

    accelerators: int | None = Field(default=None, ge=0)
    """The most accelerators that a job may have, over all its pods and those of models beside it. Every extended
    resource is one, except those of notAccelerators; claims for devices cannot be counted and are refused."""

    not_accelerators: Items[str] = NOT_ACCELERATORS
    """Extended resources that are not accelerators, by name; one that ends with a slash stands for its whole domain."""

    extra_fields: Items[str] = ()
    """Fields that pods may have besides those in files/ceilings.yaml of the chart, such as `nodeName`, `volumes.nfs` or
    `containers.stdin`."""

    queues: QueueCeilings = QueueCeilings()
    """Which of Kueue's queues jobs wait in."""

    @property
    def bounds_pods(self) -> bool:
        """Whether there is any ceiling over pods."""
        no_ceilings = ("queues", "not_accelerators", "extra_fields", "pod_security_version")
        return self != Ceilings.model_construct(**{name: getattr(self, name) for name in no_ceilings})

    @property
    def minor(self) -> int:
        """The minor version of the standard."""
        return int(self.pod_security_version.removeprefix("v1."))
