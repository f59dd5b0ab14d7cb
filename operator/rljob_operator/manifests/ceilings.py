"""`Ceilings`: what an administrator lets no pod of any job go beyond, whatever its template asks for.

They are held against the pods that would be made, so they hold for templates, profiles and queues alike. The chart
renders a ValidatingAdmissionPolicy from the same values (`charts/rljob/templates/ceilings.yaml`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rljob_api.vocabulary.images import is_pinned
from rljob_api.vocabulary.model import ApiModel, Items
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.pod.pods import pod
from rljob_operator.manifests.pod.security import containers, violations
from rljob_operator.manifests.serving import service_pod

DEFAULT_ACCOUNT = "default"


class Ceilings(ApiModel):
    """What no pod of a job may go beyond; a list that is null is no ceiling, an empty one admits nothing."""

    pod_security: Literal["Privileged", "Baseline", "Restricted"] = "Privileged"
    """The Pod Security Standard that pods keep, whatever their namespace enforces. Privileged: any."""

    host_network: bool = True
    """Whether pods may use the network of their node."""

    privileged: bool = True
    """Whether containers may be privileged."""

    host_paths: Items[str] | None = None
    """Folders of nodes that pods may mount, with all that is below them."""

    images: Items[str] | None = None
    """How the names of images may begin, such as `registry.example.com/ml/`."""

    image_digests: bool = False
    """Whether every image must be named by digest, `NAME@sha256:…`: a tag may be another image tomorrow."""

    service_accounts: Items[str] | None = None
    """Service accounts that pods may have; one that names none has `default`."""

    priority_classes: Items[str] | None = None
    """Priority classes that pods may name; one that names none is admitted."""

    accelerators: int | None = Field(default=None, ge=0)
    """The most accelerators that a job may have, over all its pods. CPUs are none."""


def beyond(ceilings: Ceilings, context: JobContext) -> list[str]:
    """What of a job goes beyond the ceilings, pod by pod; empty where nothing does."""
    if ceilings == Ceilings():
        return []
    found = list(_accelerators(ceilings, context))
    for group in context.plan.groups:
        spec = pod(context, group, 0, 1)
        found += [f"worker group {group.name}: {each}" for each in _of_pod(ceilings, spec)]
    for service in context.spec.services:
        spec = service_pod(context, service, 1)
        found += [f"service {service.name}: {each}" for each in _of_pod(ceilings, spec)]
    return found


def _accelerators(ceilings: Ceilings, context: JobContext) -> Iterator[str]:
    counted = [group for group in context.plan.groups if context.profile(group).resource is not None]
    asked = sum(group.replicas * group.workers_per_host for group in counted)
    if ceilings.accelerators is not None and asked > ceilings.accelerators:
        yield f"{asked} accelerators, and a job may have {ceilings.accelerators} (accelerators)"


def _of_pod(ceilings: Ceilings, pod: Manifest) -> Iterator[str]:
    spec = pod["spec"]
    for each in violations(pod, ceilings.pod_security.lower()):
        yield f"{each}, which podSecurity: {ceilings.pod_security} forbids"
    if spec.get("hostNetwork") and not ceilings.host_network:
        yield "hostNetwork: true, which no pod may have (hostNetwork)"
    account = spec.get("serviceAccountName") or DEFAULT_ACCOUNT
    yield from _unlisted("service account", account, ceilings.service_accounts, "serviceAccounts")
    if priority := spec.get("priorityClassName"):
        yield from _unlisted("priority class", priority, ceilings.priority_classes, "priorityClasses")
    for volume in spec.get("volumes", ()):
        path = (volume.get("hostPath") or {}).get("path")
        if path is not None and ceilings.host_paths is not None and not _is_below(path, ceilings.host_paths):
            yield f"host path {path} of volume {volume['name']}: {_allowed(ceilings.host_paths)} (hostPaths)"
    for container in containers(spec):
        name, image = container["name"], container["image"]
        if (container.get("securityContext") or {}).get("privileged") and not ceilings.privileged:
            yield f"container {name} is privileged, which none may be (privileged)"
        if ceilings.images is not None and not image.startswith(tuple(ceilings.images)):
            yield f"image {image} of container {name}: {_allowed(ceilings.images)} (images)"
        if ceilings.image_digests and not is_pinned(image):
            yield f"image {image} of container {name} is not named by digest, NAME@sha256:… (imageDigests)"


def _unlisted(what: str, name: str, listed: Items[str] | None, field: str) -> Iterator[str]:
    if listed is not None and name not in listed:
        yield f"{what} {name}: {_allowed(listed)} ({field})"


def _allowed(listed: Items[str]) -> str:
    return f"allowed are {', '.join(listed)}" if listed else "none is allowed"


def _is_below(path: str, folders: Items[str]) -> bool:
    """`/data/x` is below `/data` and below `/data/`, `/database` is not."""
    return any(f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/") for folder in folders)
