"""Which exit code stands for several processes that failed together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.vocabulary.exit_codes import ABORTED, ExitCode, is_failure

SETTLE_SECONDS = 2.0
"""How long after the first failure other codes are still heard: a peer's 75 often arrives before its cause."""


@dataclass(frozen=True, slots=True)
class Exit:
    """One process that ended by itself; `at_seconds` is on any clock all exits share."""

    name: str
    code: int
    at_seconds: float


def first_cause(exits: Sequence[Exit], settle_seconds: float = SETTLE_SECONDS) -> Exit | None:
    """The exit that explains the end: first failure, any code before 75 but a later SIGABRT, by which collectives end a
    process whose peer is lost; None when nobody failed.

    Only exits within the settle time of the first failure count; later ones are consequences.

        75 at 0.0 s, 65 at 0.4 s, 137 at 9 s   ->  65
    """
    failures = sorted((one for one in exits if is_failure(one.code)), key=lambda one: (one.at_seconds, one.name))
    if not failures:
        return None
    deadline = failures[0].at_seconds + settle_seconds
    heard = [one for one in failures if one.at_seconds <= deadline]
    lost_at = min((one.at_seconds for one in heard if one.code == ExitCode.RETRY), default=math.inf)
    causes = [
        one for one in heard if one.code != ExitCode.RETRY and (one.code not in ABORTED or one.at_seconds < lost_at)
    ]
    return (causes or heard)[0]


def pod_exit_code(exits: Sequence[Exit], settle_seconds: float = SETTLE_SECONDS) -> int:
    """The code of the whole: the first cause's, else 76 if anybody stopped on request, else 0."""
    cause = first_cause(exits, settle_seconds)
    if cause is not None:
        return cause.code
    return max((one.code for one in exits), default=int(ExitCode.DONE))
