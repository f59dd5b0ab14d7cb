"""Whether, and from where, a gang that ended starts again, how long it may take to end, and the words for it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.local.pods.pods import GangEnd

STOP_MARGIN_SECONDS = 60.0
"""For the checkpoint that follows the last step."""
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


def stop_seconds(plan: Plan) -> float:
    """How long a gang that is asked to stop may take: the step that runs, and those until a verdict on it governs."""
    return (1 + plan.verdict_delay) * plan.spec.data_buffer.deadline_seconds + STOP_MARGIN_SECONDS


def code_after_stop(code: int) -> int:
    """The code of a run that was asked to stop; a gang killed by the request itself wrote no checkpoint."""
    interrupted = (TERMINATED, int(ExitCode.INTERRUPTED))
    return int(ExitCode.INTERRUPTED) if code in interrupted else code


def phase_of(code: int) -> str:
    """What `rljob status` says of an ended run."""
    phases = {int(ExitCode.DONE): "Succeeded", int(ExitCode.STOPPED): "Stopped", int(ExitCode.INTERRUPTED): "Stopped"}
    return phases.get(code, "Failed")


def start_of_restart(commits: Sequence[Commit]) -> str:
    """From where the next attempt starts."""
    steps = [commit.step for commit in commits]
    return f"from the checkpoint of step {max(steps)}" if steps else "from the beginning: there is no checkpoint yet"


def end_cause(end: GangEnd) -> str:
    """Who ended an attempt, and what it said; empty for an attempt that did what it should."""
    if not end.process:
        return ""
    words = end.words.cause if end.words and end.words.cause else "no last words"
    return f"{end.process}: {words}"


def kept_checkpoint(commits: Sequence[Commit]) -> str:
    """What a run that stops at once has to go on from."""
    steps = [commit.step for commit in commits]
    return f"the checkpoint of step {max(steps)} stays" if steps else "there is no checkpoint"
