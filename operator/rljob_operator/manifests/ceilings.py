"""`Ceilings`: what an administrator lets no pod of any job go beyond, whatever its template asks for.

They are held against the pods that would be made, so they hold for templates, profiles and queues alike. The chart
renders a ValidatingAdmissionPolicy from the same values (`charts/rljob/templates/ceilings.yaml`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import Field

from rljob_api.vocabulary.images import is_pinned
from rljob_api.vocabulary.model import ApiModel, Items
from rljob_api.vocabulary.quantity import amount
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.pod.pods import pod
from rljob_operator.manifests.pod.security import containers, violations
from rljob_operator.manifests.serving.kinds import kinds_of_pods

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
    """The most accelerators that a job may have, over all its pods and those of models beside it. CPUs are none."""


def beyond(ceilings: Ceilings, context: JobContext) -> list[str]:
    """What of a job goes beyond the ceilings, pod by pod; empty where nothing does."""
    if ceilings == Ceilings():
        return []
    pods = list(_pods(context))
    found = list(_accelerators(ceilings, context, pods))
    for owner, _, rendered in pods:
        found += [f"{owner}: {each}" for each in _of_pod(ceilings, rendered)]
    return list(dict.fromkeys(found))


def _pods(context: JobContext) -> Iterator[tuple[str, int, Manifest]]:
    """Whose, how many, and one of them, of every kind of pod that the job has."""
    for group in context.plan.groups:
        yield f"worker group {group.name}", group.replicas, pod(context, group, 0, 1)
    for service in context.spec.services:
        for each in kinds_of_pods(context, service):
            yield f"service {service.name}", each.count, each.pod


def _accelerators(ceilings: Ceilings, context: JobContext, pods: Iterable[tuple[str, int, Manifest]]) -> Iterator[str]:
    """As many as pods ask for, by a profile or by a template: those of services with those of the gang."""
    known = {profile.resource for profile in context.profiles.values() if profile.resource is not None}
    asked = sum(count * _devices(rendered, known) for _, count, rendered in pods)
    if ceilings.accelerators is not None and asked > ceilings.accelerators:
        yield f"{asked} accelerators, and a job may have {ceilings.accelerators} (accelerators)"


def _devices(pod: Manifest, known: set[str]) -> int:
    """Accelerators of the containers that run together."""
    spec = pod["spec"]
    sidecars = [each for each in spec.get("initContainers", ()) if each.get("restartPolicy") == "Always"]
    asked: list[dict[str, Any]] = [each.get("resources") or {} for each in (*sidecars, *spec["containers"])]
    devices = [{**(each.get("requests") or {}), **(each.get("limits") or {})} for each in asked]
    return sum(int(amount(str(found))) for each in devices for name, found in each.items() if name in known)


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
