"""`Pod`: a pod as the checks read it, whatever shape its fields have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Manifest = Mapping[str, Any]


def at(value: Any, *path: str) -> Any:
    """The field at `path`; None where it, or a mapping on the way, is missing."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def entries(value: Any, *path: str) -> list[Manifest]:
    """The mappings in the list at `path`: what is neither is refused by the API server."""
    found = at(value, *path)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list | tuple) else []


def strings(value: Any, *path: str) -> list[str]:
    """The list at `path` as strings."""
    found = at(value, *path)
    return [str(each) for each in found] if isinstance(found, list | tuple) else []


def containers(spec: Manifest) -> list[Manifest]:
    """All containers of a pod's spec, in the order in which they start."""
    return [each for field in ("initContainers", "containers", "ephemeralContainers") for each in entries(spec, field)]


@dataclass(frozen=True)
class Pod:
    """A pod, and the minor version of Kubernetes whose standard is asked for."""

    manifest: Manifest
    minor: int

    @property
    def spec(self) -> Manifest:
        return at(self.manifest, "spec") or {}

    @property
    def annotations(self) -> Manifest:
        return at(self.manifest, "metadata", "annotations") or {}

    @property
    def containers(self) -> list[tuple[str, Manifest]]:
        """Name and container."""
        return [(str(each.get("name")), each) for each in containers(self.spec)]

    @property
    def is_windows(self) -> bool:
        """Pods of Windows have none of the fields that the restricted standard demands."""
        return self.minor >= 25 and at(self.spec, "os", "name") == "windows"

    @property
    def has_own_users(self) -> bool:
        """Whether root of the pod is nobody on the node, which the standard takes into account since v1.35."""
        return self.minor >= 35 and at(self.spec, "hostUsers") is False

    def settings(self, *path: str) -> Iterator[tuple[str, Any]]:
        """A field of the security contexts, where it is set: of the pod, and of each container."""
        owners = [("the pod", self.spec), *((f"container {name}", each) for name, each in self.containers)]
        for owner, holder in owners:
            found = at(holder, "securityContext", *path)
            if found is not None:
                yield owner, found

    def inherited(self, *path: str) -> Iterator[tuple[str, Any]]:
        """A field of each container's security context, or of the pod's where the container does not set it."""
        of_pod = at(self.spec, "securityContext", *path)
        for name, each in self.containers:
            own = at(each, "securityContext", *path)
            yield f"container {name}", of_pod if own is None else own
