"""A filter of system calls for processes that run user code: what Landlock does not cover, and ways around a guardian.

The filter is a classic BPF program, assembled here. A call that is denied fails with an error, and the program goes on.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct

from rljob_worker.sandbox.confinement.syscalls import LAST_KNOWN, MACHINE, Machine, number_of, prctl

Code = list[tuple[int, int, int, int]]
"""Instructions: operation, jump if true, jump if false, operand."""

LOAD, AND = 0x20, 0x54
JUMP_EQUAL, JUMP_GREATER, JUMP_ANY_BIT = 0x15, 0x25, 0x45
RETURN = 0x06
ALLOW, KILL_PROCESS, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Offsets in the kernel's description of a call; an argument has eight bytes, its lower half first."""
ARCHITECTURES: dict[Machine, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PR_GET_SECCOMP, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 21, 22, 2

NEW_NAMESPACES = 0x7E020000
"""Flags of clone."""
MSG_FASTOPEN = 0x20000000
"""Connects without connect, which Landlock does not see."""
F_SETLEASE = 1024
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
SOCKET_TYPE = 0xF
"""The bits of a socket's type that are no flags."""

ABSENT = (
    "clone3", "io_uring_enter", "io_uring_register", "io_uring_setup", "memfd_create", "memfd_secret", "mq_open",
    "msgget", "semget", "shmget", "userfaultfd",
)  # fmt: skip
"""Calls that a kernel need not have: programs do without them. Memory of some belongs to no process that is counted."""
DENIED = (
    # out of the group that the guardian kills; into namespaces
    "setsid", "setpgid", "unshare", "setns",
    # other processes
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd",
    # mounts
    "mount", "umount2", "move_mount", "open_tree", "open_tree_attr", "fsopen", "fsconfig", "fsmount", "fspick",
    "mount_setattr", "pivot_root", "chroot",
    # what Landlock allows of files that may be read only
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchown", "fchownat", "utime", "utimes",
    "utimensat", "futimesat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr",
    "fremovexattr", "removexattrat", "file_setattr",
    # servers
    "listen",
    # the machine
    "acct", "add_key", "adjtimex", "bpf", "clock_adjtime", "clock_settime", "delete_module", "fanotify_init",
    "finit_module", "init_module", "ioperm", "iopl", "kexec_file_load", "kexec_load", "keyctl", "name_to_handle_at",
    "open_by_handle_at", "perf_event_open", "quotactl", "quotactl_fd", "reboot", "request_key", "setdomainname",
    "sethostname", "settimeofday", "swapoff", "swapon", "syslog", "vhangup",
)  # fmt: skip
OF_ITSELF_ONLY = {
    "prlimit64": 0, "sched_setaffinity": 0, "sched_setattr": 0, "sched_setparam": 0, "sched_setscheduler": 0,
    "migrate_pages": 0, "move_pages": 0, "setpriority": 1, "ioprio_set": 1,
}  # fmt: skip
"""Calls about a process, and which argument names it: 0 is the caller."""


def has_seccomp() -> bool:
    """Whether this kernel filters system calls of this architecture."""
    try:
        return MACHINE in ARCHITECTURES and prctl(PR_GET_SECCOMP) in (0, SECCOMP_MODE_FILTER)
    except OSError:
        return False


def filter_calls(*, connects: bool) -> None:
    """Put the filter on this thread and what it starts, for good. connects: whether TCP connections may be made, to
    ports that Landlock permits. Needs no-new-privileges. Raises OSError."""
    machine: Machine = "x86_64" if MACHINE == "x86_64" else "aarch64"
    code = assemble(machine, connects=connects)
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    instructions = ctypes.create_string_buffer(packed, len(packed))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(instructions)))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)


def assemble(machine: Machine, *, connects: bool) -> Code:
    """The program: another architecture's call ends the process, an unknown one is absent, others go rule by rule."""
    code: Code = [
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, NUMBER),
        (JUMP_GREATER, 0, 1, LAST_KNOWN),
        _failing(errno.ENOSYS),
    ]
    for name, rule in _rules(connects=connects).items():
        if (number := number_of(name, machine)) is not None:
            code += [(JUMP_EQUAL, 0, len(rule), number), *rule]
    return [*code, (RETURN, 0, 0, ALLOW)]


def _rules(*, connects: bool) -> dict[str, Code]:
    """By call, what is done about it; every rule ends with a return."""
    allow = (RETURN, 0, 0, ALLOW)
    stream = _only(1, (socket.SOCK_STREAM,), SOCKET_TYPE)
    tcp = [*_only(0, (socket.AF_INET, socket.AF_INET6)), *stream, *_only(2, (0, socket.IPPROTO_TCP)), allow]
    rules: dict[str, Code] = {name: [_failing(errno.ENOSYS)] for name in ABSENT}
    rules |= {name: [_failing(errno.EPERM)] for name in DENIED}
    rules |= {name: [*_only(argument, (0,)), allow] for name, argument in OF_ITSELF_ONLY.items()}
    return rules | {
        "clone": [*_without(0, NEW_NAMESPACES), allow],
        "socket": tcp if connects else [_failing(errno.EPERM)],
        # a datagram socket of a pair can be pointed at any other
        "socketpair": [*stream, allow],
        "sendto": [*_without(3, MSG_FASTOPEN), allow],
        "sendmsg": [*_without(2, MSG_FASTOPEN), allow],
        "sendmmsg": [*_without(3, MSG_FASTOPEN), allow],
        "ioctl": [*_except(1, TIOCSTI), *_except(1, TIOCLINUX), allow],
        "fcntl": [*_except(1, F_SETLEASE), allow],
    }


def _failing(error: int) -> tuple[int, int, int, int]:
    return (RETURN, 0, 0, FAIL | error)


def _argument(index: int) -> tuple[int, int, int, int]:
    return (LOAD, 0, 0, ARGUMENTS + 8 * index)


def _only(argument: int, values: tuple[int, ...], mask: int | None = None) -> Code:
    """Go on if an argument has one of these values; fail otherwise."""
    masked: Code = [] if mask is None else [(AND, 0, 0, mask)]
    tests: Code = [(JUMP_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [_argument(argument), *masked, *tests, _failing(errno.EPERM)]


def _without(argument: int, bits: int) -> Code:
    """Go on if an argument has none of these bits."""
    return [_argument(argument), (JUMP_ANY_BIT, 0, 1, bits), _failing(errno.EPERM)]


def _except(argument: int, value: int) -> Code:
    return [_argument(argument), (JUMP_EQUAL, 0, 1, value), _failing(errno.EPERM)]
