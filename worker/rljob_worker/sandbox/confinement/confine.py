"""What a process may do that runs user code: applied by itself, before its first thread and line of user code.

`Required` is refused where the kernel cannot confine; `Preferred` takes what there is. Nothing here needs a privilege,
and root loses its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.confinement.landlock import SCOPED_ABI, landlock_abi, restrict
from rljob_worker.sandbox.confinement.seccomp import filter_calls, has_seccomp
from rljob_worker.sandbox.confinement.syscalls import CAPSET, MACHINE, prctl, syscall

ConfinementMode = Literal["Required", "Preferred", "Off"]
STRICTEST_FIRST: tuple[ConfinementMode, ...] = ("Required", "Preferred", "Off")

PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS = 24, 28, 38
NO_ROOT = 0b11
"""Programs that root starts get no capabilities, and nobody changes that."""
CAPABILITY_VERSION = 0x20080522
MOST_FILES = 1024

SYSTEM = (
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types",
    "/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/dev/urandom", "/dev/random", "/dev/zero",
    "/sys/devices/system/cpu",
)  # fmt: skip
"""What programs and libraries read, and nothing that says who is on this machine."""

_log = logging.getLogger("rljob.sandbox")


@dataclass(frozen=True, slots=True)
class Confinement:
    """What one process asks of itself."""

    mode: ConfinementMode
    longest_file_bytes: int | None = None
    """Unset: as long as there is room."""
    proxy_port: int | None = None
    """The port on loopback by which it reaches the network; None: it does not."""
    readable: tuple[str, ...] = ()
    """Absolute paths of files and folders, besides those from which modules are imported."""
    ports: tuple[int, ...] = ()
    """Other ports that it may connect to, such as that of a server of the worker."""


def strictest(modes: Iterable[ConfinementMode]) -> ConfinementMode:
    """What holds for functions that share processes; Off where there are none."""
    return min(modes, key=STRICTEST_FIRST.index, default="Off")


def check_confinement(owner: str, mode: ConfinementMode) -> None:
    """Raises InvalidJob, which begins with `owner`, where the mode is Required and this machine cannot confine; warns
    where it is Preferred."""
    if mode == "Off" or not (missing := ", ".join(missing_confinement())):
        return
    if mode == "Required":
        raise InvalidJob(
            f"{owner}: confinement: Required cannot be had on this machine: {missing}. Use a node with Linux 6.12 or "
            "later whose container runtime permits it, or write Preferred or Off"
        )
    _log.warning("%s: confinement: Preferred goes without a part of it on this machine: %s", owner, missing)


def check_readable(owner: str, paths: Iterable[str]) -> None:
    """Raises InvalidJob, which begins with `owner`, for a path that is not there."""
    for path in paths:
        if not os.path.exists(path):
            raise InvalidJob(
                f"{owner}: readable: there is no {path!r} on this machine; correct the path, or put the data there"
            )


def readable_paths(paths: Iterable[str]) -> tuple[str, ...]:
    """Paths as a process finds them whose working directory is another one, each once."""
    return tuple(dict.fromkeys(map(os.path.abspath, paths)))


def confine(confinement: Confinement, folder: str) -> None:
    """Confine this process and everything that it starts, for good. folder: where it may write. Raises OSError where
    the mode is Required and the kernel refuses."""
    with contextlib.suppress(OSError):  # /proc may be read-only
        Path("/proc/self/oom_score_adj").write_text("1000")
    for limit, most in _limits(confinement):
        resource.setrlimit(limit, (most, most))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    confine_files(confinement, folder)
    _drop_capabilities()
    if confinement.mode == "Required" or has_seccomp():
        with _optional(confinement):
            filter_calls(connects=bool(_ports(confinement)))


def confine_files(confinement: Confinement, folder: str) -> None:
    """The part of `confine` that is about files and ports: of a process that is confined already, less is left."""
    if confinement.mode == "Required" or landlock_abi():
        with _optional(confinement):
            writable = (folder, "/dev/null")
            restrict(landlock_abi(), [*_imported(), *confinement.readable], writable, _ports(confinement))


def _optional(confinement: Confinement) -> contextlib.AbstractContextManager[None]:
    return contextlib.suppress(OSError) if confinement.mode == "Preferred" else contextlib.nullcontext()


def _ports(confinement: Confinement) -> tuple[int, ...]:
    proxy = () if confinement.proxy_port is None else (confinement.proxy_port,)
    return (*proxy, *confinement.ports)


def missing_confinement() -> Iterator[str]:
    """What this machine lacks for confinement: Required."""
    abi = landlock_abi()
    if abi < SCOPED_ABI:
        yield f"Landlock has ABI {abi}, not {SCOPED_ABI}" if abi else "there is no Landlock"
    if not has_seccomp():
        yield f"there is no seccomp filter for {MACHINE}"


def _imported() -> list[str]:
    """The system's programs, the interpreter, and all folders from which this process imports."""
    own = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *filter(None, sys.path)]
    return [*SYSTEM, *dict.fromkeys(os.path.realpath(path) for path in own)]


def _limits(confinement: Confinement) -> Iterator[tuple[int, int]]:
    yield resource.RLIMIT_CORE, 0
    for limit, most in (
        (resource.RLIMIT_FSIZE, confinement.longest_file_bytes),
        (resource.RLIMIT_NOFILE, MOST_FILES),
    ):
        hard = resource.getrlimit(limit)[1]
        if most is not None:
            yield limit, most if hard == resource.RLIM_INFINITY else min(most, hard)


def _drop_capabilities() -> None:
    """Root without its privileges; others have none."""
    with contextlib.suppress(OSError):
        for capability in range(64):
            prctl(PR_CAPBSET_DROP, capability)
    with contextlib.suppress(OSError):
        prctl(PR_SET_SECUREBITS, NO_ROOT)
    if MACHINE not in CAPSET:
        return
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    syscall(CAPSET[MACHINE], header, struct.pack("=IIIIII", *[0] * 6))
