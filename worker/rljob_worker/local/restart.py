"""Whether, and from where, a gang that ended starts again. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.vocabulary.exit_codes import ExitCode

TERMINATED = 143
"""A process that did not catch SIGTERM: it was asked to stop before it could listen."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed checkpoint: its step and the attempt that wrote it."""

    step: int
    attempt: int


def resume_of_attempt(attempt: int, first_attempt: int, first_resume: str, commits: Sequence[Commit]) -> str:
    """What the workers of `attempt` start from.

    The first attempt of a `rljob run` starts from what the user chose. Later ones go on from the newest checkpoint,
    once there is one of this run: before that, a newer one left by an earlier run must not be taken for it.
    """
    if attempt == first_attempt or not any(commit.attempt >= first_attempt for commit in commits):
        return first_resume
    return "auto"


def code_after_stop(code: int) -> int:
    """The code of a run that was asked to stop; a gang killed by the request itself wrote no checkpoint."""
    interrupted = (TERMINATED, int(ExitCode.INTERRUPTED))
    return int(ExitCode.INTERRUPTED) if code in interrupted else code


def phase_of(code: int) -> str:
    """What `rljob status` says of an ended run."""
    phases = {int(ExitCode.DONE): "Succeeded", int(ExitCode.STOPPED): "Stopped", int(ExitCode.INTERRUPTED): "Stopped"}
    return phases.get(code, "Failed")
