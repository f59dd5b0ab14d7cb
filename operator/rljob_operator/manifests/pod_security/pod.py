"""`Pod`: a pod as the checks read it, whatever shape its fields have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Manifest = Mapping[str, Any]


def field_at(value: Any, *path: str) -> Any:
    """The field at `path`; None where it, or a mapping on the way, is missing."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def entries(value: Any, *path: str) -> list[Manifest]:
    """The mappings in the list at `path`: what is neither is refused by the API server."""
    field = field_at(value, *path)
    return [item for item in field if isinstance(item, Mapping)] if isinstance(field, list | tuple) else []


def strings(value: Any, *path: str) -> list[str]:
    """The list at `path` as strings."""
    field = field_at(value, *path)
    return [str(item) for item in field] if isinstance(field, list | tuple) else []


def containers(spec: Manifest) -> list[Manifest]:
    """All containers of a pod's spec, in the order in which they start."""
    return [
        entry for field in ("initContainers", "containers", "ephemeralContainers") for entry in entries(spec, field)
    ]


@dataclass(frozen=True)
class CheckedPod:
    """A pod, and the minor version of Kubernetes whose standard is asked for."""

    manifest: Manifest
    minor: int

    @property
    def spec(self) -> Manifest:
        return field_at(self.manifest, "spec") or {}

    @property
    def annotations(self) -> Manifest:
        return field_at(self.manifest, "metadata", "annotations") or {}

    @property
    def containers(self) -> list[tuple[str, Manifest]]:
        """Name and container."""
        return [(str(container.get("name")), container) for container in containers(self.spec)]

    @property
    def is_windows(self) -> bool:
        """Pods of Windows have none of the fields that the restricted standard demands."""
        return self.minor >= 25 and field_at(self.spec, "os", "name") == "windows"

    @property
    def has_own_users(self) -> bool:
        """Whether root of the pod is nobody on the node, which the standard takes into account since v1.35."""
        return self.minor >= 35 and field_at(self.spec, "hostUsers") is False

    def settings(self, *path: str) -> Iterator[tuple[str, Any]]:
        """A field of the security contexts, where it is set: of the pod, and of each container."""
        owners = [("the pod", self.spec), *((f"container {name}", item) for name, item in self.containers)]
        for owner, holder in owners:
            field = field_at(holder, "securityContext", *path)
            if field is not None:
                yield owner, field

    def inherited(self, *path: str) -> Iterator[tuple[str, Any]]:
        """A field of each container's security context, or of the pod's where the container does not set it."""
        of_pod = field_at(self.spec, "securityContext", *path)
        for name, item in self.containers:
            own = field_at(item, "securityContext", *path)
            yield f"container {name}", of_pod if own is None else own
