"""Landlock: which files a process and what it starts may use, which TCP ports, and no signals to processes outside."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

from rljob_worker.sandbox.confinement.syscalls import (
    LANDLOCK_ADD_RULE,
    LANDLOCK_CREATE_RULESET,
    LANDLOCK_RESTRICT_SELF,
    syscall,
)

SCOPED_ABI = 6
"""The first version that keeps signals and abstract UNIX sockets inside."""
RULE_PATH, RULE_PORT = 1, 2

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_SOCK, MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 11
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Rights about files that exist since a version."""
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Rights that a rule about a file that is no folder may have."""
READ = EXECUTE | READ_FILE | READ_DIR
PORTS_ABI = 4
BIND_PORT, CONNECT_PORT = 1, 2
ALL_SCOPES = 3


def landlock_abi() -> int:
    """The version that this kernel speaks; 0 where it has none, or a container forbids it."""
    try:
        return syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    except OSError:
        return 0


def restrict(abi: int, readable: Sequence[str], writable: Sequence[str], may_connect_to: Sequence[int]) -> None:
    """Restrict this thread and what it starts, for good. Paths that are absent are left out.

    readable: files and folders to read and execute.  writable: to do everything in, except devices and sockets.
    may_connect_to: TCP ports, of any address. Needs no-new-privileges. Raises OSError.
    """
    rights = RIGHTS_BY_ABI[max(version for version in RIGHTS_BY_ABI if version <= abi)]
    ports = BIND_PORT | CONNECT_PORT if abi >= PORTS_ABI else 0
    attributes = struct.pack("=QQQ", rights, ports, ALL_SCOPES if abi >= SCOPED_ABI else 0)
    size = 24 if abi >= SCOPED_ABI else 16 if abi >= PORTS_ABI else 8
    ruleset = syscall(LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    try:
        for path in readable:
            _add_path(ruleset, path, READ & rights)
        for path in writable:
            _add_path(ruleset, path, rights & ~(MAKE_CHAR | MAKE_BLOCK | MAKE_SOCK))
        for port in may_connect_to if ports else ():
            syscall(LANDLOCK_ADD_RULE, ruleset, RULE_PORT, struct.pack("=QQ", CONNECT_PORT, port), 0)
        syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _add_path(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        allowed = rights if os.path.isdir(path) else rights & OF_FILES
        syscall(LANDLOCK_ADD_RULE, ruleset, RULE_PATH, struct.pack("=Qi", allowed, place), 0)
    finally:
        os.close(place)
