"""The Debian packages a cluster on this machine stands on: installed if absent."""

import os
import shutil
from dataclasses import dataclass

from e2e.cluster.commands import SYSTEM_PATH, CommandFailed, run


@dataclass(frozen=True, slots=True)
class SystemPackage:
    """A Debian package and a file that is there when it is installed: an absolute path, or a program on PATH."""

    name: str
    provides: str

    def is_installed(self) -> bool:
        if self.provides.startswith("/"):
            return os.path.exists(self.provides)
        return shutil.which(self.provides, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}") is not None


RUNTIME = (
    SystemPackage("containerd", "containerd"),
    SystemPackage("runc", "runc"),
    SystemPackage("containernetworking-plugins", "/usr/lib/cni/bridge"),
    SystemPackage("nftables", "nft"),
    SystemPackage("iptables", "iptables"),
    SystemPackage("iproute2", "ip"),
    SystemPackage("conntrack", "conntrack"),
    SystemPackage("openssl", "openssl"),
)
IMAGE_BUILDING = (
    SystemPackage("debootstrap", "debootstrap"),
    SystemPackage("busybox-static", "busybox"),
    SystemPackage("gcc", "gcc"),
    SystemPackage("libc6-dev", "/usr/include/stdlib.h"),
    SystemPackage("binutils", "readelf"),
)


def missing(packages: tuple[SystemPackage, ...]) -> list[str]:
    return [package.name for package in packages if not package.is_installed()]


def ensure_installed(packages: tuple[SystemPackage, ...]) -> None:
    absent = missing(packages)
    if not absent:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise RuntimeError(
            f"not installed: {', '.join(absent)}. A cluster on this machine needs Debian's packages of these names and "
            "root to install them; with a docker engine, `make e2e CLUSTER=kind` needs neither"
        )
    install(absent)


def install(names: list[str]) -> None:
    # RUNLEVEL=1: a package that brings a service must not start it
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    argv = ("apt-get", "install", "-y", "--no-install-recommends", *names)
    try:
        run(*argv, env=quiet)
    except CommandFailed:
        run("apt-get", "update")
        run(*argv, env=quiet)
