"""Errors that only the data plane knows."""

from __future__ import annotations

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.errors import PeerLost, RLJobError


class Bug(RLJobError):
    """An exception in background work that is none of ours: exit code 70."""


class OutOfOrder(RLJobError):
    """Something is asked for that is over, or sent that is not newer than what came before: a bug of ours."""


class Malformed(PeerLost):
    """Bytes that are not a message, or one that cannot be so: from somebody who is not one of us."""


def require(is_so: bool, words: str) -> None:
    """Raises Malformed for what no peer of ours says."""
    if not is_so:
        raise Malformed(words)


class Away(PeerLost):
    """A data buffer does not answer now; it may in a moment."""

    timed_out = False
    """Whether the call lasted as long as it could."""


class Elsewhere(Away):
    """A data buffer's address is not known, or another one is there, or may be: look it up again."""


class Damaged(Away):
    """A call, or its answer, is not what was sent."""


class Refused(PeerLost):
    """A data buffer would not speak to us: wrong plan or attempt, or not the one it was."""


class NotValidNow(RLJobError):
    """A certificate whose time has not come or is over. The next attempt gets new ones: exit code 75."""

    exit_code = ExitCode.RETRY
