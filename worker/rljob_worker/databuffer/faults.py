"""Errors across the wire: the name of an error of ours travels beside its message, and comes out as the same class."""

from __future__ import annotations

import pyarrow.flight as flight

from rljob_worker.errors import (
    BadData,
    DeadlineExceeded,
    InvalidJob,
    PeerLost,
    RLJobError,
    StorageError,
)

_PENDING = b"Pending"


class Refused(PeerLost):
    """A data buffer would not speak to us: wrong token, attempt or plan."""


class OutOfOrder(RLJobError):
    """A version of a broadcast that is not newer than the one before it: a bug of ours."""


_KINDS: dict[str, type[RLJobError]] = {
    kind.__name__: kind for kind in (BadData, DeadlineExceeded, InvalidJob, OutOfOrder, PeerLost, Refused, StorageError)
}


def to_flight(error: RLJobError) -> flight.FlightServerError:
    """What a server raises so that its client can raise `error`."""
    return flight.FlightServerError(str(error), extra_info=type(error).__name__.encode())


def from_flight(error: Exception, whom: str) -> Exception:
    """The error a call to `whom` means: ours by name, PeerLost when it is gone, else `error` itself, a bug."""
    if isinstance(error, (flight.FlightUnavailableError, flight.FlightCancelledError)):
        return PeerLost(f"{whom} does not answer: {_first_line(error)}")
    if isinstance(error, flight.FlightTimedOutError):
        return PeerLost(f"{whom} did not answer in time: {_first_line(error)}")
    if isinstance(error, flight.FlightUnauthorizedError):
        return Refused(f"{whom} refused the call: {_first_line(error)}")
    name = (getattr(error, "extra_info", b"") or b"").decode()
    return _KINDS[name](_first_line(error)) if name in _KINDS else error


def pending() -> flight.FlightServerError:
    """What a server raises when the caller should ask again."""
    return flight.FlightServerError("not yet", extra_info=_PENDING)


def is_pending(error: Exception) -> bool:
    return getattr(error, "extra_info", None) == _PENDING


def _first_line(error: Exception) -> str:
    # Arrow appends ". Detail: Failed" and, for bugs, the server's traceback
    return str(error).split(". Detail:")[0]
