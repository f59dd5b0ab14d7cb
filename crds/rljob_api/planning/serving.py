"""What the models beside a job run on."""

from __future__ import annotations

from collections.abc import Mapping

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.v1alpha1 import ServiceSpec
from rljob_api.vocabulary.model import ApiModel


class ServicePlan(ApiModel):
    """A model beside the job, with all that its accelerator profile says of its copies."""

    name: str
    profile: str
    copies: int
    """The most that there may be. Of an application of the user's own 1, which has its copies in it."""
    device: str
    """The torch device type of each copy: cpu, cuda, npu ..."""
    accelerators: int
    """Accelerators of each copy. 0: it runs on CPUs."""
    ray_resource: str | None
    """What Ray calls these accelerators. None: it runs on CPUs."""

    @property
    def num_accelerators(self) -> int:
        """Accelerators of all copies together."""
        return self.copies * self.accelerators


def service_plan(service: ServiceSpec, profiles: Mapping[str, AcceleratorProfile]) -> ServicePlan:
    """The plan of a service whose profile is one of `profiles`."""
    asked = service.worker_group.accelerator
    profile = profiles[asked.profile]
    on_cpus = profile.device == "cpu"
    return ServicePlan(
        name=service.name,
        profile=profile.name,
        copies=service.num_copies,
        device=profile.device,
        accelerators=0 if on_cpus else asked.count,
        ray_resource=None if on_cpus else profile.ray_resource,
    )
