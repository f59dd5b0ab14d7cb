"""Errors that only the data plane knows."""

from __future__ import annotations

from rljob_worker.errors import PeerLost, RLJobError


class Bug(RLJobError):
    """An exception in background work that is none of ours: exit code 70."""


class OutOfOrder(RLJobError):
    """Something is asked for that is over, or sent that is not newer than what came before: a bug of ours."""


class Malformed(PeerLost):
    """Bytes that are no message: from somebody who is not one of us, or damaged."""
