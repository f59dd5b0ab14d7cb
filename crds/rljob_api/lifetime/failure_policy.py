"""What to do when a gang has ended: restart, stop, or nothing, because it is done.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from rljob_api.v1alpha1 import FailurePolicySpec, FailureRule
from rljob_api.v1alpha1.infrastructure import DISRUPTION
from rljob_api.vocabulary.exit_codes import ABORTED, ExitCode, is_failure

DISRUPTION_TARGET = "DisruptionTarget"
"""The condition that Kubernetes sets on a pod before it takes its node away."""

Because = Literal["ExitCode", "Rule", "Restarts", "Repetition"]


@dataclass(frozen=True)
class RestartGang:
    """Start the gang again as a new attempt, from its last committed checkpoint."""

    reason: str
    counted: bool = True
    """Whether it counts against maxRestarts."""


@dataclass(frozen=True)
class StopJob:
    """The job ends here."""

    code: ExitCode
    reason: str
    because: Because = "ExitCode"
    """What ends the job: the exit code alone, a rule of the policy, that all restarts are used up, or that a restart
    would only meet the same bug again."""


@dataclass(frozen=True)
class JobDone:
    """The job is done."""


PolicyDecision = RestartGang | StopJob | JobDone

# A gang's processes end for several reasons at once; the first of these that any of them gave is the cause. What
# cannot work comes first, a wish to stop next, then failures, and a lost peer last, for it is only an echo.
_RANKING = (
    ExitCode.INVALID_JOB,
    ExitCode.BAD_DATA,
    ExitCode.STORAGE,
    ExitCode.INTERRUPTED,
    ExitCode.BUG,
)
_LAST = (ExitCode.STOPPED, ExitCode.RETRY, ExitCode.DONE)
_NEVER_RETRIED = (ExitCode.INVALID_JOB, ExitCode.BAD_DATA)
_FINAL = (*_NEVER_RETRIED, ExitCode.STORAGE, ExitCode.STOPPED, ExitCode.INTERRUPTED)


def apply_failure_policy(
    exit_codes: Collection[int],
    restarts: int,
    policy: FailurePolicySpec,
    pod_conditions: Iterable[str] = (),
    *,
    is_repeated: bool = False,
) -> PolicyDecision:
    """What follows from the exit codes of a gang's pods.

    exit_codes: of all pods that ended; -N or 128 + N is death by signal N.  restarts: counted ones so far.
    pod_conditions: conditions that are set on the pods that failed, such as DisruptionTarget.  is_repeated: the last
    attempt ended at the same step, with no checkpoint in between.
    """
    code = gang_exit_code(exit_codes)
    if code == ExitCode.DONE:
        return JobDone()
    cause = describe_exit_code(code)
    if code in _NEVER_RETRIED:
        return StopJob(as_exit_code(code), cause)
    # What the cluster does to a job is not charged to it, also where the user's own rules do not speak of it.
    rule = _matching((*policy.rules, DISRUPTION), code, frozenset(pod_conditions))
    if rule is not None and rule.action == "Stop":
        return StopJob(as_exit_code(code), f"{cause}; a rule of failurePolicy stops the job", "Rule")
    if rule is not None and not rule.counted:
        return RestartGang(f"{cause}; not counted, as failurePolicy says", counted=False)
    if rule is None and code in _FINAL:
        return StopJob(as_exit_code(code), cause)
    if rule is None and code == ExitCode.BUG and is_repeated:
        return StopJob(ExitCode.BUG, f"{cause}, twice at the same step with no checkpoint in between", "Repetition")
    if restarts >= policy.max_restarts:
        used_up = f"all {policy.max_restarts} restarts of failurePolicy are used up"
        return StopJob(as_exit_code(code), f"{cause}; {used_up}", "Restarts")
    return RestartGang(f"{cause}; restart {restarts + 1} of {policy.max_restarts}")


def why_guest_ends_job(exit_code: int, policy: FailurePolicySpec, pod_conditions: Iterable[str] = ()) -> StopJob | None:
    """What follows from the end of one pod of an elastic group: None where another takes its place, as it does unless
    every other would end the same way, or a rule of the policy stops the job."""
    code = int(ExitCode.RETRY) if exit_code == ExitCode.STOPPED else exit_code  # asked by its node, not by us
    verdict = apply_failure_policy([code], 0, policy, pod_conditions)
    if not isinstance(verdict, StopJob):
        return None
    return verdict if verdict.because == "Rule" or code in _NEVER_RETRIED else None


def gang_exit_code(exit_codes: Collection[int]) -> int:
    """The code that speaks for a gang: any code other than 75 outranks 75, and any failure outranks success.

    But SIGABRT is outranked by every other failure, 75 too: collectives abort a process whose peer is lost.
    """
    codes = set(exit_codes) or {int(ExitCode.DONE)}
    if any(map(is_failure, codes - ABORTED)):
        codes -= ABORTED
    for code in _RANKING:
        if code in codes:
            return int(code)
    if others := sorted(codes.difference(_LAST)):
        # A supervisor kills what is left of a gang, so a code that a process chose tells more than a signal.
        return min(others, key=lambda code: (_signal_of(code) is not None, code))
    return int(next(code for code in _LAST if code in codes))


def as_exit_code(code: int) -> ExitCode:
    """The code as one of ours; a code that we never exit with is a bug."""
    return ExitCode(code) if code in set(ExitCode) else ExitCode.BUG


def describe_exit_code(code: int) -> str:
    """`exit code 75: a peer was lost or a deadline passed`."""
    if code in set(ExitCode):
        return f"exit code {code}: {ExitCode(code).meaning}"
    if (signal := _signal_of(code)) is not None:
        hint = " (often out of memory)" if signal == 9 else ""
        return f"killed by signal {signal}{hint}"
    return f"exit code {code}: {ExitCode.BUG.meaning}"


def _signal_of(code: int) -> int | None:
    if code < 0:
        return -code
    return code - 128 if 128 < code < 192 and code != ExitCode.INTERRUPTED else None


def _matching(rules: Iterable[FailureRule], code: int, conditions: frozenset[str]) -> FailureRule | None:
    """The first rule whose conditions and exit codes, as far as it names any, both match."""
    for rule in rules:
        by_condition = not rule.on_pod_conditions or bool(conditions.intersection(rule.on_pod_conditions))
        by_code = not rule.on_exit_codes or code in rule.on_exit_codes
        if by_condition and by_code:
            return rule
    return None
