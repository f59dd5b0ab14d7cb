"""Checks of the restricted standard: each yields what it forbids, or what is missing."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_operator.manifests.pod_security import baseline
from rljob_operator.manifests.pod_security.pod import CheckedPod, entries, field_at, strings

CAPABILITIES = ("NET_BIND_SERVICE",)
"""Capabilities that a container may add once it has dropped all."""

VOLUMES = (
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
)  # fmt: skip
"""Kinds of volumes that are allowed."""


def volume_types(pod: CheckedPod) -> Iterator[str]:
    for volume in entries(pod.spec, "volumes"):
        kinds = [name for name in volume if name != "name"]
        if kinds and not any(kind in VOLUMES for kind in kinds):  # a volume of no kind is an emptyDir
            yield f"{' and '.join(kinds)} volume {volume.get('name')}"


def privilege_escalation(pod: CheckedPod) -> Iterator[str]:
    for name, container in () if pod.is_windows else pod.containers:
        if field_at(container, "securityContext", "allowPrivilegeEscalation") is not False:
            yield f"container {name} does not set allowPrivilegeEscalation: false"


def non_root(pod: CheckedPod) -> Iterator[str]:
    if pod.has_own_users:
        return
    if field_at(pod.spec, "securityContext", "runAsNonRoot") is False:
        yield "the pod sets runAsNonRoot: false"
    for owner, is_non_root in pod.inherited("runAsNonRoot"):
        if is_non_root is not True:
            yield f"{owner} does not set runAsNonRoot: true"


def user(pod: CheckedPod) -> Iterator[str]:
    if pod.has_own_users:
        return
    for owner, number in pod.settings("runAsUser"):
        if number == 0:
            yield f"{owner} runs as root"


def required_seccomp(pod: CheckedPod) -> Iterator[str]:
    if pod.is_windows:
        return
    yield from baseline.seccomp(pod)
    for owner, profile in pod.inherited("seccompProfile"):
        if profile is None:
            yield f"{owner} has no seccomp profile"


def dropped_capabilities(pod: CheckedPod) -> Iterator[str]:
    if pod.is_windows:
        return
    yield from baseline.added(pod, CAPABILITIES)
    for name, container in pod.containers:
        if "ALL" not in strings(container, "securityContext", "capabilities", "drop"):
            yield f"container {name} does not drop ALL capabilities"
