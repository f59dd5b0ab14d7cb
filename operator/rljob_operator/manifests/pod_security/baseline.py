"""Checks of the baseline standard: each yields what it forbids."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_operator.manifests.pod_security.pod import CheckedPod, entries, field_at, strings

CAPABILITIES = (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
)  # fmt: skip
"""Capabilities that a container may add."""

SELINUX_TYPES = {0: ("", "container_t", "container_init_t", "container_kvm_t"), 31: ("container_engine_t",)}
"""Types that are allowed, by the minor version since when they are."""

SYSCTLS = {
    0: (
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_unprivileged_port_start",
    ),
    27: ("net.ipv4.ip_local_reserved_ports",),
    29: (
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
    ),
    32: ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
    37: ("net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_notsent_lowat"),
}
"""Kernel parameters that are allowed, by the minor version since when they are."""

PROFILES = ("RuntimeDefault", "Localhost")
"""Types of seccomp and AppArmor profiles that are allowed."""

PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
HOOKS = ("postStart", "preStop")

_APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP_OF_POD = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP_OF_CONTAINER = "container.seccomp.security.alpha.kubernetes.io/"


def allowed(since: dict[int, tuple[str, ...]], minor: int) -> list[str]:
    """What is allowed in a minor version."""
    return [name for first, names in since.items() if first <= minor for name in names]


def host_namespaces(pod: CheckedPod) -> Iterator[str]:
    yield from (f"{field}: true" for field in ("hostNetwork", "hostPID", "hostIPC") if field_at(pod.spec, field))


def host_process(pod: CheckedPod) -> Iterator[str]:
    for owner, is_set in pod.settings("windowsOptions", "hostProcess"):
        if is_set:
            yield f"hostProcess: true of {owner}"


def privileged(pod: CheckedPod) -> Iterator[str]:
    for name, container in pod.containers:
        if field_at(container, "securityContext", "privileged"):
            yield f"container {name} is privileged"


def capabilities(pod: CheckedPod) -> Iterator[str]:
    yield from added(pod, CAPABILITIES)


def added(pod: CheckedPod, admitted: tuple[str, ...]) -> Iterator[str]:
    """Capabilities that containers add beyond these."""
    for name, container in pod.containers:
        for string in strings(container, "securityContext", "capabilities", "add"):
            if string not in admitted:
                yield f"capability {string} of container {name}"


def host_path_volumes(pod: CheckedPod) -> Iterator[str]:
    for volume in entries(pod.spec, "volumes"):
        if field_at(volume, "hostPath") is not None:
            yield f"hostPath volume {volume.get('name')}"


def host_ports(pod: CheckedPod) -> Iterator[str]:
    for name, container in pod.containers:
        for port in entries(container, "ports"):
            if port.get("hostPort"):
                yield f"hostPort {port['hostPort']} of container {name}"


def host_probes(pod: CheckedPod) -> Iterator[str]:
    """A kubelet would connect to any host for the pod."""
    for name, container in pod.containers:
        handlers = [field_at(container, probe) for probe in PROBES] + [
            field_at(container, "lifecycle", hook) for hook in HOOKS
        ]
        for handler in handlers:
            for action in ("httpGet", "tcpSocket"):
                if host := field_at(handler, action, "host"):
                    yield f"host {host} of a probe or lifecycle hook of container {name}"


def app_armor(pod: CheckedPod) -> Iterator[str]:
    for owner, profile in pod.settings("appArmorProfile"):
        if field_at(profile, "type") not in PROFILES:
            yield f"AppArmor profile {field_at(profile, 'type')} of {owner}"
    for name, value in pod.annotations.items():
        if name.startswith(_APP_ARMOR) and not (
            value in ("", "runtime/default") or str(value).startswith("localhost/")
        ):
            yield f"annotation {name}: {value}"


def selinux(pod: CheckedPod) -> Iterator[str]:
    types = allowed(SELINUX_TYPES, pod.minor)
    for owner, options in pod.settings("seLinuxOptions"):
        if field_at(options, "type") not in (None, *types):
            yield f"SELinux type {field_at(options, 'type')} of {owner}"
        yield from (f"SELinux {field} of {owner}" for field in ("user", "role") if field_at(options, field))


def proc_mount(pod: CheckedPod) -> Iterator[str]:
    if not pod.has_own_users:
        yield from masked_proc_mount(pod)


def masked_proc_mount(pod: CheckedPod) -> Iterator[str]:
    for name, container in pod.containers:
        field = field_at(container, "securityContext", "procMount")
        if field not in (None, "Default"):
            yield f"procMount {field} of container {name}"


def seccomp(pod: CheckedPod) -> Iterator[str]:
    if pod.minor < 19:
        yield from _seccomp_annotations(pod)
        return
    for owner, profile in pod.settings("seccompProfile"):
        if field_at(profile, "type") not in PROFILES:
            yield f"seccomp profile {field_at(profile, 'type')} of {owner}"


def _seccomp_annotations(pod: CheckedPod) -> Iterator[str]:
    """How profiles were named before v1.19."""
    for name in (_SECCOMP_OF_POD, *(f"{_SECCOMP_OF_CONTAINER}{name}" for name, _ in pod.containers)):
        value = pod.annotations.get(name)
        if value not in (None, "runtime/default", "docker/default") and not str(value).startswith("localhost/"):
            yield f"annotation {name}: {value}"


def sysctls(pod: CheckedPod) -> Iterator[str]:
    names = allowed(SYSCTLS, pod.minor)
    for entry in entries(pod.spec, "securityContext", "sysctls"):
        if entry.get("name") not in names:
            yield f"sysctl {entry.get('name')}"
