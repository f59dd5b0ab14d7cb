"""The standards as lists of checks, and which one a namespace enforces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rljob_operator.manifests.pod_security import baseline, restricted
from rljob_operator.manifests.pod_security.pod import CheckedPod, Manifest

ENFORCE_LABEL = "pod-security.kubernetes.io/enforce"
VERSION_LABEL = "pod-security.kubernetes.io/enforce-version"
LEVELS = ("privileged", "baseline", "restricted")
"""From the loosest to the strictest."""

NEWEST_MINOR = 37
"""The newest version of the standards that is known here."""
DEFAULT_MINOR = 34
"""The last one that takes no pod's word that the node keeps its users apart (`hostUsers: false`)."""

Find = Callable[[CheckedPod], Iterator[str]]


@dataclass(frozen=True)
class Check:
    """One line of a standard."""

    find: Find
    since: int = 0
    """The minor version that brought it."""
    replaces: Find | None = None
    """The looser check of the baseline standard that is not asked any more."""


BASELINE = (
    Check(baseline.app_armor),
    Check(baseline.capabilities),
    Check(baseline.host_namespaces),
    Check(baseline.host_path_volumes),
    Check(baseline.host_ports),
    Check(baseline.host_probes, since=34),
    Check(baseline.host_process),
    Check(baseline.privileged),
    Check(baseline.proc_mount),
    Check(baseline.seccomp),
    Check(baseline.selinux),
    Check(baseline.sysctls),
)
RESTRICTED = (
    Check(restricted.privilege_escalation, since=8),
    Check(restricted.dropped_capabilities, since=22, replaces=baseline.capabilities),
    Check(restricted.volume_types, replaces=baseline.host_path_volumes),
    Check(baseline.masked_proc_mount, since=35, replaces=baseline.proc_mount),
    Check(restricted.non_root),
    Check(restricted.user, since=23),
    Check(restricted.required_seccomp, since=19, replaces=baseline.seccomp),
)


def violations(pod: Manifest, level: str, minor: int = DEFAULT_MINOR) -> list[str]:
    """What in `pod` the standard `level` of version v1.`minor` forbids; empty when the pod is admitted."""
    subject = CheckedPod(pod, minor)
    return list(dict.fromkeys(result for check in _checks(level, minor) for result in check.find(subject)))


def _checks(level: str, minor: int) -> list[Check]:
    if level not in ("baseline", "restricted"):
        return []
    strict = [check for check in RESTRICTED if check.since <= minor] if level == "restricted" else []
    replaced = {check.replaces for check in strict}
    loose = [check for check in BASELINE if check.since <= minor and check.find not in replaced]
    return [*loose, *strict]


@dataclass(frozen=True)
class Enforced:
    """What a namespace enforces."""

    level: str
    minor: int


_VERSION = re.compile(r"v1\.([0-9]{1,4})")


def enforced(namespace_labels: Mapping[str, str]) -> Enforced:
    """What the API server enforces in a namespace with these labels."""
    level = namespace_labels.get(ENFORCE_LABEL, LEVELS[0])
    version = _VERSION.fullmatch(namespace_labels.get(VERSION_LABEL, ""))
    return Enforced(level if level in LEVELS else LEVELS[0], int(version[1]) if version else NEWEST_MINOR)
