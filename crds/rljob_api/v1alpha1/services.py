"""Models served beside the job."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rljob_api.v1alpha1.infrastructure import AcceleratorSpec
from rljob_api.vocabulary.model import ApiModel

ServiceName = Annotated[
    str, Field(pattern=r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$", max_length=32, json_schema_extra={"maxLength": 32})
]
"""Part of an address, where underscores are dashes: none at the end, nor two of them together."""


class ServiceGroupSpec(ApiModel):
    """What a service runs on."""

    replicas: int = Field(default=1, ge=1, le=1024)
    """Copies of the model, each on accelerators of its own. Default 1."""

    accelerator: AcceleratorSpec = AcceleratorSpec()
    """The accelerators of one copy, over which a shipped model lays its layers one after the other. On a cluster all
    copies are in one pod, on one node; where KubeRay serves them, each is in a pod of its own. On one machine copies
    have the accelerators behind those of workers. With the profile cpu the count says how many CPUs a copy is worth."""

    template: dict[str, Any] = Field(default_factory=dict)
    """A pod template merged over the generated one, in which the container is `service`: images, resources, volumes,
    selectors. It is of the pod with all copies, or with KubeRay of each. Only a cluster looks at it."""


class AutoscalingSpec(ApiModel):
    """How the number of copies follows the requests: bounds and pace, as Ray Serve has them."""

    min_replicas: int = Field(default=1, ge=1, le=1024)
    """Copies that are always there. Default 1."""

    initial_replicas: int | None = Field(default=None, ge=1, le=1024)
    """Copies to begin with. Unset: minReplicas."""

    max_replicas: int = Field(ge=1, le=1024)
    """The most copies."""

    target_ongoing_requests: float = Field(default=2.0, gt=0)
    """Requests that a copy should have at once; more of them make more copies. Default 2."""

    upscale_delay_seconds: float = Field(default=30.0, ge=0)
    """How long requests must be too many before there are more copies, in seconds. Default 30."""

    downscale_delay_seconds: float = Field(default=600.0, ge=0)
    """How long copies must be too many before there are fewer, in seconds. Default 600."""


class ServiceSpec(ApiModel):
    """One application of Ray Serve. It lives as long as the job: a gang that restarts finds it there."""

    name: ServiceName
    """What rewards and metrics call it, and the path at which it answers: lower-case letters, digits, and single
    underscores between them."""

    run: str = Field(min_length=1)
    """The application, as `module:application`: an application of Ray Serve, or a function that makes one of
    `options`. Shipped, each with options of its own: `rljob_worker.services:reward_model`, `process_reward_model`,
    `judge`, `embedding` and `video_encoder`."""

    worker_group: ServiceGroupSpec = ServiceGroupSpec()
    """Copies of the model, and the accelerators of each. An application of the user's own says in
    `@serve.deployment` how many copies it has."""

    autoscaling: AutoscalingSpec | None = None
    """Let the number of copies follow the requests, in place of workerGroup.replicas. Unset: it stays."""

    options: dict[str, Any] = Field(default_factory=dict)
    """What the function that makes the application is given."""

    health_seconds: float = Field(default=600.0, gt=0)
    """How long it may take from its start until it is healthy, and until it is so again where it answers no more, in
    seconds. One that takes longer is started again, failurePolicy.maxRestarts times; then the job ends with what it
    last said. Default 600."""

    @property
    def num_copies(self) -> int:
        """The most that there may be."""
        return self.worker_group.replicas if self.autoscaling is None else self.autoscaling.max_replicas
