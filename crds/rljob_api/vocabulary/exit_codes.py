"""What a process of a job says by its exit code; the words that the launcher, the supervisor and the
operator share."""

from __future__ import annotations

from enum import IntEnum
from signal import SIGABRT


class ExitCode(IntEnum):
    """Exit codes of workers, data buffers and the CLI.  The numbers 64 to 75 follow sysexits.h."""

    DONE = 0
    INVALID_JOB = 64
    BAD_DATA = 65
    BUG = 70
    STORAGE = 74
    RETRY = 75
    STOPPED = 76
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """One clause that completes "the pod exited because ..."."""
        return _MEANINGS[self]


ABORTED = frozenset((-SIGABRT, 128 + SIGABRT))
"""By SIGABRT collectives end a process whose peer is lost: other failures explain more."""


def is_failure(code: int) -> bool:
    """Whether the others of a gang cannot go on: done and stopped-on-request are ordinary ends."""
    return code not in (ExitCode.DONE, ExitCode.STOPPED)


_MEANINGS = {
    ExitCode.DONE: "the job is done",
    ExitCode.INVALID_JOB: "the job is invalid",
    ExitCode.BAD_DATA: "the data cannot be used",
    ExitCode.BUG: "rljob or the user's code has a bug",
    ExitCode.STORAGE: "a disk or the storage failed",
    ExitCode.RETRY: "a peer was lost or a deadline passed",
    ExitCode.STOPPED: "the job was asked to stop and wrote a checkpoint",
    ExitCode.INTERRUPTED: "the job was interrupted from the keyboard",
}
