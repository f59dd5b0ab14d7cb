"""Who a pod's processes are and what they may do."""

from __future__ import annotations

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_operator.manifests.context import JobContext, Manifest


def pod_security_context(context: JobContext, profile: AcceleratorProfile) -> Manifest:
    """Not root; one group for all containers, so that sidecar and workers read each other's files."""
    user = context.pods.user_id
    groups = list(profile.supplemental_groups)
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        **({"supplementalGroups": groups} if groups else {}),
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security_context(capabilities: tuple[str, ...] = ()) -> Manifest:
    """What the restricted standard demands, and a read-only image; `capabilities` are what the accelerator needs."""
    added: Manifest = {"add": list(capabilities)} if capabilities else {}
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], **added},
    }
