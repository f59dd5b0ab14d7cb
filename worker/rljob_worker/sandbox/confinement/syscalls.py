"""Numbers of system calls on the architectures that have a filter here, and calls by number."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Literal

Machine = Literal["x86_64", "aarch64"]

MACHINE = platform.machine()
LAST_KNOWN = 469
"""The highest number below; a kernel may have calls beyond it that do what those below may not."""

ON_X86_64_ONLY = {
    "chmod": 90, "chown": 92, "lchown": 94, "utime": 132, "utimes": 235, "futimesat": 261, "iopl": 172, "ioperm": 173,
}  # fmt: skip
NUMBERS = {
    # name: (x86_64, aarch64)
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "chroot": (161, 51),
    "clock_adjtime": (305, 266), "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435),
    "delete_module": (176, 106), "fanotify_init": (300, 262), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "fchown": (93, 55), "fchownat": (260, 54), "fcntl": (72, 25), "file_setattr": (469, 469),
    "finit_module": (313, 273), "fremovexattr": (199, 16), "fsconfig": (431, 431), "fsetxattr": (190, 7),
    "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433), "init_module": (175, 105), "ioctl": (16, 29),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425),
    "ioprio_set": (251, 30), "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104),
    "keyctl": (250, 219), "listen": (50, 201), "lremovexattr": (198, 15), "lsetxattr": (189, 6),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "migrate_pages": (256, 238), "mount": (165, 40),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "move_pages": (279, 239), "mq_open": (240, 180),
    "msgget": (68, 186), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "open_tree_attr": (467, 467), "perf_event_open": (298, 241), "pidfd_getfd": (438, 438), "pivot_root": (155, 41),
    "prlimit64": (302, 261), "process_madvise": (440, 440), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "reboot": (169, 142), "removexattr": (197, 14), "removexattrat": (466, 466), "request_key": (249, 218),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "semget": (64, 190), "sendmmsg": (307, 269), "sendmsg": (46, 211),
    "sendto": (44, 206), "setdomainname": (171, 162), "sethostname": (170, 161), "setns": (308, 268),
    "setpgid": (109, 154), "setpriority": (141, 140), "setsid": (112, 157), "settimeofday": (164, 170),
    "setxattr": (188, 5), "setxattrat": (463, 463), "shmget": (29, 194), "socket": (41, 198), "socketpair": (53, 199),
    "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97),
    "userfaultfd": (323, 282), "utimensat": (280, 88), "vhangup": (153, 58),
}  # fmt: skip

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
CAPSET = {"x86_64": 126, "aarch64": 91}

_libc = ctypes.CDLL(None, use_errno=True)


def number_of(name: str, machine: Machine) -> int | None:
    """The number of a call; None where the architecture does without it."""
    if name in ON_X86_64_ONLY:
        return ON_X86_64_ONLY[name] if machine == "x86_64" else None
    return NUMBERS[name][machine == "aarch64"]


def syscall(number: int, *arguments: object) -> int:
    """Call the kernel. Raises OSError."""
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def prctl(option: int, *arguments: object) -> int:
    """`prctl` with zeros for arguments that are left out. Raises OSError."""
    result = int(_libc.prctl(option, *[*arguments, 0, 0, 0, 0][:4]))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
