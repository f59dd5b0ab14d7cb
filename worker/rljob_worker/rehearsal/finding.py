"""What a rehearsal finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_api.vocabulary.problem import InvalidJobError, Problem
from rljob_worker.errors import RLJobError


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that would end the job."""

    problem: Problem
    code: ExitCode = ExitCode.INVALID_JOB
    """What the job would end with."""


@dataclass(frozen=True, slots=True)
class Findings:
    """All of a rehearsal."""

    found: tuple[Finding, ...] = ()
    unseen: tuple[str, ...] = ()
    """What could not be looked at here: a sentence each."""
    lacking: tuple[Finding, ...] = ()
    """What would end the job on this machine; on another it may run."""
    warned: tuple[str, ...] = ()
    """What lets the job run and is probably not meant: a sentence each."""

    rows: tuple[Mapping[str, Any], ...] = ()
    """The first of the data, as rewards are given them; values of JSON."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(item.problem for item in self.found)

    def raise_found(self) -> None:
        """Raises InvalidJobError when anything was found."""
        if self.found:
            codes = {item.code for item in self.found}
            raise InvalidJobError(self.problems, codes.pop() if len(codes) == 1 else ExitCode.INVALID_JOB)


def finding_of(path: str, error: RLJobError) -> Finding:
    """An error of ours as a finding; what follows its first semicolon is the fix."""
    message, _, fix = str(error).partition("; ")
    return Finding(Problem(path, "", message, f"{fix[:1].upper()}{fix[1:]}." if fix else ""), error.exit_code)
