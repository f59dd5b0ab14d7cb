"""Who a pod's processes are and what they may do; and what Pod Security Standards say to a pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_operator.manifests.context import JobContext, Manifest

ENFORCE_LABEL = "pod-security.kubernetes.io/enforce"
LEVELS = ("privileged", "baseline", "restricted")
"""From the loosest to the strictest."""

BASELINE_CAPABILITIES = frozenset(
    {"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"}
    | {"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}
)
RESTRICTED_VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected"}
    | {"secret"}
)


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


def violations(pod: Manifest, level: str) -> list[str]:
    """What in `pod` the standard `level` forbids, in its words; empty when the pod is admitted."""
    spec = pod["spec"]
    found: list[str] = []
    if level in ("baseline", "restricted"):
        found += _baseline(spec)
    if level == "restricted":
        found += _restricted(spec)
    return list(dict.fromkeys(found))


def admits(namespace_labels: Mapping[str, str]) -> str:
    """The level that the API server enforces in a namespace with these labels."""
    level = namespace_labels.get(ENFORCE_LABEL, LEVELS[0])
    return level if level in LEVELS else LEVELS[0]


def _baseline(spec: Manifest) -> Iterator[str]:
    yield from (f"{field}: true" for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field))
    yield from (f"hostPath volume {volume['name']}" for volume in spec.get("volumes", ()) if "hostPath" in volume)
    for container in containers(spec):
        name, security = container["name"], container.get("securityContext", {})
        if security.get("privileged"):
            yield f"container {name} is privileged"
        added = security.get("capabilities", {}).get("add", ())
        yield from (f"capability {each} of container {name}" for each in added if each not in BASELINE_CAPABILITIES)
        ports = container.get("ports", ())
        yield from (f"hostPort {port['hostPort']} of container {name}" for port in ports if port.get("hostPort"))


def _restricted(spec: Manifest) -> Iterator[str]:
    for volume in spec.get("volumes", ()):
        kinds = set(volume) - {"name"} - RESTRICTED_VOLUMES
        yield from (f"{kind} volume {volume['name']}" for kind in sorted(kinds) if kind != "hostPath")
    whole = spec.get("securityContext", {})
    for container in containers(spec):
        name, security = container["name"], {**whole, **container.get("securityContext", {})}
        capabilities = security.get("capabilities", {})
        if security.get("allowPrivilegeEscalation") is not False:
            yield f"container {name} does not set allowPrivilegeEscalation: false"
        if "ALL" not in capabilities.get("drop", ()):
            yield f"container {name} does not drop ALL capabilities"
        for each in capabilities.get("add", ()):
            if each in BASELINE_CAPABILITIES - {"NET_BIND_SERVICE"}:
                yield f"capability {each} of container {name}"
        if security.get("runAsNonRoot") is not True:
            yield f"container {name} does not set runAsNonRoot: true"
        if security.get("runAsUser") == 0:
            yield f"container {name} runs as root"
        if security.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"container {name} has no seccomp profile"


def containers(spec: Manifest) -> list[Manifest]:
    """Those of a pod's spec, in the order in which they start."""
    return [*spec.get("initContainers", ()), *spec["containers"]]
