"""The fields that pods may have where there are ceilings: an allow-list, as an unknown field may reach anywhere."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from rljob_operator.manifests.pod_security.pod import Manifest, at, containers, entries

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
"""By the place in a pod's spec. Whatever reaches beyond the pod has a ceiling of its own."""


def unknown_fields(spec: Manifest, extra: Collection[str]) -> Iterator[str]:
    """Fields of a pod that are neither known nor among `extra`, with whose they are."""
    holders = [("", "the pod", spec), ("securityContext", "the pod", at(spec, "securityContext"))]
    for each in containers(spec):
        owner = f"container {each.get('name')}"
        holders.append(("containers", owner, each))
        holders.append(("containers.securityContext", owner, at(each, "securityContext")))
    holders += [("volumes", f"volume {each.get('name')}", each) for each in entries(spec, "volumes")]
    for place, owner, holder in holders:
        for name in holder if isinstance(holder, Mapping) else ():
            path = f"{place}.{name}".removeprefix(".")
            if name not in FIELDS[place] and path not in extra:
                yield f"field {path} of {owner}, which pods may not have here (extraFields)"
