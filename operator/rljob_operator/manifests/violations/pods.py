"""One pod held against the ceilings."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from rljob_api.vocabulary.images import is_pinned
from rljob_operator import names
from rljob_operator.manifests.ceilings import Ceilings
from rljob_operator.manifests.context import JobContext
from rljob_operator.manifests.pod_security.pod import Manifest, containers, entries, field_at
from rljob_operator.manifests.pod_security.standard import violations

DEFAULT_SERVICE_ACCOUNT = "default"
DEFAULT_SCHEDULER = "default-scheduler"
FAILING_NODES = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of nodes that fail, which every pod tolerates for some time."""

FIELDS: Mapping[str, tuple[str, ...]] = {
    "": (
        "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy",
        "enableServiceLinks", "hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostUsers", "hostname",
        "imagePullSecrets", "initContainers", "nodeSelector", "os", "overhead", "preemptionPolicy", "priority",
        "priorityClassName", "readinessGates", "resourceClaims", "resources", "restartPolicy", "runtimeClassName",
        "schedulerName", "schedulingGates", "schedulingGroup", "securityContext", "serviceAccount",
        "serviceAccountName", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain",
        "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "volumes",
    ),
    "securityContext": (
        "appArmorProfile", "fsGroup", "fsGroupChangePolicy", "runAsGroup", "runAsNonRoot", "runAsUser",
        "seLinuxChangePolicy", "seLinuxOptions", "seccompProfile", "supplementalGroups", "supplementalGroupsPolicy",
        "sysctls", "windowsOptions",
    ),
    "containers": (
        "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name", "ports",
        "readinessProbe", "resizePolicy", "resources", "restartPolicy", "restartPolicyRules", "securityContext",
        "startupProbe", "terminationMessagePath", "terminationMessagePolicy", "volumeDevices", "volumeMounts",
        "workingDir",
    ),
    "containers.securityContext": (
        "allowPrivilegeEscalation", "appArmorProfile", "capabilities", "privileged", "procMount",
        "readOnlyRootFilesystem", "runAsGroup", "runAsNonRoot", "runAsUser", "seLinuxOptions", "seccompProfile",
        "windowsOptions",
    ),
    "volumes": (
        "configMap", "downwardAPI", "emptyDir", "ephemeral", "hostPath", "image", "name", "persistentVolumeClaim",
        "projected", "secret",
    ),
}  # fmt: skip
"""The fields that pods may have where there are ceilings, by their place in a pod's spec: an unknown field may reach
anywhere. What reaches beyond the pod has a ceiling of its own."""


def pod_violations(ceilings: Ceilings, context: JobContext, pod: Manifest) -> Iterator[str]:
    """What of one pod goes beyond the ceilings."""
    spec = pod["spec"]
    for violation in violations(pod, ceilings.pod_security.lower(), ceilings.minor):
        yield f"{violation}, which podSecurity: {ceilings.pod_security} forbids"
    yield from unknown_fields(spec, ceilings.extra_fields)
    yield from _node(ceilings, context, spec)
    yield from _identity(ceilings, spec)
    yield from _host_paths(ceilings, spec)
    yield from _images(ceilings, spec)
    for container in containers(spec):
        if field_at(container, "securityContext", "privileged") and not ceilings.privileged:
            yield f"container {container.get('name')} is privileged, which none may be (privileged)"
    for name, place in _secrets(spec):
        if ceilings.secrets is not None and name not in ceilings.secrets and not _is_own_secret(context, name):
            yield f"Secret {name} in {place}: {allowed_text(ceilings.secrets)} (secrets)"


def unknown_fields(spec: Manifest, extra: Collection[str]) -> Iterator[str]:
    """Fields of a pod that are neither known nor among `extra`, with whose they are."""
    holders = [("", "the pod", spec), ("securityContext", "the pod", field_at(spec, "securityContext"))]
    for container in containers(spec):
        owner = f"container {container.get('name')}"
        holders.append(("containers", owner, container))
        holders.append(("containers.securityContext", owner, field_at(container, "securityContext")))
    holders += [("volumes", f"volume {entry.get('name')}", entry) for entry in entries(spec, "volumes")]
    for place, owner, holder in holders:
        for name in holder if isinstance(holder, Mapping) else ():
            path = f"{place}.{name}".removeprefix(".")
            if name not in FIELDS[place] and path not in extra:
                yield f"field {path} of {owner}, which pods may not have here (extraFields)"


def _node(ceilings: Ceilings, context: JobContext, spec: Manifest) -> Iterator[str]:
    """Where a pod runs, and in what."""
    if field_at(spec, "hostNetwork") and not ceilings.host_network:
        yield "hostNetwork: true, which no pod may have (hostNetwork)"
    for entry in entries(spec, "tolerations"):
        key = str(entry.get("key") or "")
        if key not in FAILING_NODES:
            yield from unlisted("toleration of", key or "every taint", ceilings.tolerations, "tolerations")
    if name := field_at(spec, "runtimeClassName"):
        yield from unlisted("runtime class", str(name), ceilings.runtime_classes, "runtimeClasses")
    gang = context.pods.gang
    name = str(field_at(spec, "schedulerName") or DEFAULT_SCHEDULER)
    if name not in (DEFAULT_SCHEDULER, gang.volcano_scheduler, gang.coscheduling_scheduler):
        yield from unlisted("scheduler", name, ceilings.schedulers, "schedulers")


def _identity(ceilings: Ceilings, spec: Manifest) -> Iterator[str]:
    """Who a pod is to the API server and to the scheduler; `serviceAccount` is the old name of the field."""
    service_account = (
        field_at(spec, "serviceAccountName") or field_at(spec, "serviceAccount") or DEFAULT_SERVICE_ACCOUNT
    )
    yield from unlisted("service account", str(service_account), ceilings.service_accounts, "serviceAccounts")
    if priority := field_at(spec, "priorityClassName"):
        yield from unlisted("priority class", str(priority), ceilings.priority_classes, "priorityClasses")
    if ceilings.api_tokens:
        return
    if field_at(spec, "automountServiceAccountToken") is not False:
        yield "automountServiceAccountToken: true, and no pod may have a token (apiTokens)"
    for volume in entries(spec, "volumes"):
        if any(field_at(entry, "serviceAccountToken") is not None for entry in entries(volume, "projected", "sources")):
            yield f"serviceAccountToken in volume {volume.get('name')}, and no pod may have a token (apiTokens)"


def _host_paths(ceilings: Ceilings, spec: Manifest) -> Iterator[str]:
    listed = ceilings.host_paths
    for volume in entries(spec, "volumes"):
        path = field_at(volume, "hostPath", "path")
        if path is not None and listed is not None and not any(_is_below(str(path), folder) for folder in listed):
            yield f"host path {path} of volume {volume.get('name')}: {allowed_text(listed)} (hostPaths)"


def _images(ceilings: Ceilings, spec: Manifest) -> Iterator[str]:
    """Images that are not allowed, of containers and of image volumes."""
    images = [(f"container {container.get('name')}", container.get("image")) for container in containers(spec)]
    for volume in entries(spec, "volumes"):
        if field_at(volume, "image") is not None:
            images.append((f"volume {volume.get('name')}", field_at(volume, "image", "reference")))
    for owner, named in images:
        image = str(named or "")
        if ceilings.images is not None and not image.startswith(tuple(ceilings.images)):
            yield f"image {image} of {owner}: {allowed_text(ceilings.images)} (images)"
        if ceilings.image_digests and not is_pinned(image):
            yield f"image {image} of {owner} is not named by digest, NAME@sha256:… (imageDigests)"


def _secrets(spec: Manifest) -> Iterator[tuple[str, str]]:
    """Secrets that a pod reads, and where: kinds of volumes name them in one of four ways."""
    for volume in entries(spec, "volumes"):
        place = f"volume {volume.get('name')}"
        sources = [item for item in volume.values() if isinstance(item, Mapping)]
        for source in sources:
            result = [
                field_at(source, "secretName"),
                field_at(source, "secretRef", "name"),
                field_at(source, "nodePublishSecretRef", "name"),
            ]
            result += [field_at(entry, "secret", "name") for entry in entries(source, "sources")]
            yield from ((str(name), place) for name in result if name is not None)
    for container in containers(spec):
        place = f"container {container.get('name')}"
        result = [field_at(entry, "valueFrom", "secretKeyRef", "name") for entry in entries(container, "env")]
        result += [field_at(entry, "secretRef", "name") for entry in entries(container, "envFrom")]
        yield from ((str(name), place) for name in result if name is not None)


def _is_own_secret(context: JobContext, name: str) -> bool:
    """Whether the operator makes it for the job."""
    certificates = re.escape(names.tls_secret_name(context.name, 0)[:-1])
    return name == names.token_secret_name(context.name) or re.fullmatch(rf"{certificates}[0-9]+", name) is not None


def _is_below(path: str, folder: str) -> bool:
    """`/data/x` is below `/data` and below `/data/`, `/database` and `/data/../etc` are not."""
    return ".." not in path.split("/") and f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


def unlisted(what: str, name: str, listed: Sequence[str] | None, field: str) -> Iterator[str]:
    """Says that `name` is not in the list, which is the ceiling `field`; None admits any."""
    if listed is not None and name not in listed:
        yield f"{what} {name}: {allowed_text(listed)} ({field})"


def allowed_text(listed: Sequence[str]) -> str:
    """What the list admits."""
    names = [name for name in listed if name]
    return f"allowed are {', '.join(names)}" if names else "none is allowed"
