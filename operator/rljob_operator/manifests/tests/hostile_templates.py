"""Templates that reach beyond their pod, and the ceilings that keep each of them out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CLOSED: dict[str, Any] = {
    "podSecurity": "Restricted",
    "hostNetwork": False,
    "privileged": False,
    "apiTokens": False,
    "hostPaths": [],
    "images": ["localhost/", "rljob-"],
    "serviceAccounts": ["default"],
    "priorityClasses": [],
    "secrets": [],
    "tolerations": [],
    "runtimeClasses": [],
    "schedulers": [],
    "accelerators": 0,
}
"""Every ceiling as low as it goes."""

OPEN = {**CLOSED, "podSecurity": "Privileged"}
BASELINE = {**CLOSED, "podSecurity": "Baseline"}


@dataclass(frozen=True)
class Hostile:
    """A template, and the word by which its refusal names the ceiling."""

    ceiling: str
    spec: dict[str, Any]
    ceilings: dict[str, Any] = field(default_factory=lambda: OPEN)
    annotations: dict[str, str] = field(default_factory=dict)

    @property
    def template(self) -> dict[str, Any]:
        return {"metadata": {"annotations": self.annotations}, "spec": self.spec}


def worker(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "worker", **fields}]}


def secured(**context: Any) -> dict[str, Any]:
    return worker(securityContext=context)


def volume(**source: Any) -> dict[str, Any]:
    return {"volumes": [{"name": "mine", **source}]}


GPUS = {"limits": {"nvidia.com/gpu": "64"}, "requests": {"nvidia.com/gpu": "64"}}
APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/worker"

HOSTILE = {
    "SELinux type": Hostile("podSecurity", secured(seLinuxOptions={"type": "spc_t"}), CLOSED),
    "AppArmor profile": Hostile("podSecurity", secured(appArmorProfile={"type": "Unconfined"}), CLOSED),
    "AppArmor annotation": Hostile("podSecurity", {}, CLOSED, {APP_ARMOR: "unconfined"}),
    "kernel parameter": Hostile(
        "podSecurity", {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}, CLOSED
    ),
    "unmasked /proc": Hostile("podSecurity", {**secured(procMount="Unmasked"), "hostUsers": False}, CLOSED),
    "seccomp profile": Hostile("podSecurity", secured(seccompProfile={"type": "Unconfined"}), BASELINE),
    "process of the host": Hostile(
        "podSecurity",
        {"hostNetwork": True, "securityContext": {"windowsOptions": {"hostProcess": True}}},
        {**BASELINE, "hostNetwork": True},
    ),
    "devices of an init container": Hostile(
        "accelerators", {"initContainers": [{"name": "helper", "image": "rljob-a:1", "resources": GPUS}]}
    ),
    "slices of a device": Hostile(
        "accelerators",
        worker(resources={"limits": {"nvidia.com/mig-1g.5gb": "7"}}),
    ),
    "devices of an unknown vendor": Hostile("accelerators", worker(resources={"limits": {"vendor.example/npu": 1}})),
    "devices of the whole pod": Hostile("accelerators", {"resources": GPUS}),
    "claim for devices": Hostile(
        "accelerators", {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight-gpus"}]}
    ),
    "image of a volume": Hostile("images", volume(image={"reference": "evil.example/x:1"})),
    "node by name": Hostile("extraFields", {"nodeName": "control-plane"}),
    "toleration of every taint": Hostile("tolerations", {"tolerations": [{"operator": "Exists"}]}),
    "toleration of a taint": Hostile(
        "tolerations", {"tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]}
    ),
    "scheduler": Hostile("schedulers", {"schedulerName": "mine"}),
    "runtime class": Hostile("runtimeClasses", {"runtimeClassName": "host"}),
    "Secret in a volume": Hostile("secrets", volume(secret={"secretName": "prod-db"})),
    "Secret in a projected volume": Hostile(
        "secrets", volume(projected={"sources": [{"secret": {"name": "prod-db"}}]})
    ),
    "Secret in variables": Hostile("secrets", worker(envFrom=[{"secretRef": {"name": "prod-db"}}])),
    "token of the account": Hostile("apiTokens", {"automountServiceAccountToken": True}),
    "token in a projected volume": Hostile(
        "apiTokens", volume(projected={"sources": [{"serviceAccountToken": {"path": "token"}}]})
    ),
    "account by the old name of the field": Hostile("serviceAccounts", {"serviceAccount": "admin"}),
}
