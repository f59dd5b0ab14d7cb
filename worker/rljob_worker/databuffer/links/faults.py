"""Error reports between data buffers: the name of an error of ours travels next to its message, and comes out as the
same class."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.flight as flight

from rljob_worker.databuffer.protocol.errors import Away, Bug, Damaged, Elsewhere, Malformed, OutOfOrder, Refused
from rljob_worker.databuffer.protocol.peer_side import Broken
from rljob_worker.databuffer.protocol.worker_answers import Failed
from rljob_worker.errors import BadData, DeadlineExceeded, InvalidJob, PeerLost, RLJobError, StopRequested, StorageError
from rljob_worker.process import frames

MAX_WORDS_BYTES = 1800
"""Longest message across the wire: it travels twice in the 8 KiB of a call's trailers, one byte as three and as four
thirds."""


_KINDS: dict[str, type[RLJobError]] = {
    kind.__name__: kind
    for kind in (
        Away,
        BadData,
        Bug,
        Damaged,
        DeadlineExceeded,
        Elsewhere,
        InvalidJob,
        Malformed,
        OutOfOrder,
        PeerLost,
        Refused,
        StopRequested,
        StorageError,
    )
}


def broken_by(error: RLJobError) -> Broken:
    """Report of `error` to the other data buffers."""
    return Broken(kind=type(error).__name__, words=str(error))


def failed_by(error: RLJobError) -> Failed:
    """Report of `error` to a worker of this host."""
    return Failed(kind=type(error).__name__, words=_cut(str(error)))


def error_from(report: Broken | Failed) -> RLJobError:
    """The error that somebody reported: of the same class, and a Bug when that is none of ours."""
    return _error(report.kind, report.words)


def to_flight(error: RLJobError) -> flight.FlightServerError:
    """What a server raises so that its client can raise `error`."""
    return flight.FlightServerError(_cut(str(error)), extra_info=type(error).__name__.encode())


def from_flight(error: Exception, peer_name: str) -> RLJobError:
    """The error that a call to `whom` means: what that side raised, by name; a lost peer for any other error.

    Away where the same call may succeed in a moment.
    """
    if isinstance(error, flight.FlightTimedOutError):
        return too_late(peer_name, _first_line(error))
    if isinstance(error, (flight.FlightUnavailableError, flight.FlightCancelledError)):
        return silent(peer_name, _first_line(error))
    name = bytes(getattr(error, "extra_info", None) or b"").decode(errors="replace")
    if isinstance(error, (flight.FlightUnauthorizedError, flight.FlightUnauthenticatedError)):
        # final only if the peer says so: who is at a stale address may serve another job, in another version
        kind = Refused if name == Refused.__name__ else Elsewhere
        return kind(f"{peer_name} refused the call: {_first_line(error)}")
    if name:
        remote_error = _error(name, _first_line(error))
        return type(remote_error)(f"{peer_name}: {remote_error}") if isinstance(remote_error, Away) else remote_error
    return PeerLost(f"{peer_name} cannot be reached: {_first_line(error)}")


@contextmanager
def errors_of(peer_name: str) -> Iterator[None]:
    """What Flight raises in the block comes out as an error of ours."""
    try:
        yield
    except RLJobError:
        raise
    except (flight.FlightError, pa.ArrowException, OSError) as error:  # a status "IOError" is an OSError here
        raise from_flight(error, peer_name) from error


@contextmanager
def socket_errors_of(peer_name: str, seconds: float) -> Iterator[None]:
    """What sockets raise in a block that may take so long comes out as an error of ours."""
    try:
        yield
    except RLJobError:  # some of ours are errors of the system as well
        raise
    except TimeoutError as error:
        raise too_late(peer_name, f"{seconds:g} s") from error
    except (EOFError, ConnectionResetError, BrokenPipeError) as error:  # which it is, is a matter of what was unread
        raise silent(peer_name, "it hung up") from error
    except OSError as error:
        raise silent(peer_name, str(error)) from error
    except frames.TooLong as error:
        raise Malformed(f"{peer_name} gave an answer of {error}") from error


def _error(name: str, words: str) -> RLJobError:
    return _KINDS[name](words) if name in _KINDS else Bug(f"{name[:80]}: {words}")


def _cut(words: str) -> str:
    data = words.encode(errors="replace")
    return data.decode() if len(data) <= MAX_WORDS_BYTES else data[:MAX_WORDS_BYTES].decode(errors="ignore") + " ..."


def too_late(peer_name: str, why: str) -> Away:
    """A call lasted as long as it could."""
    error = Away(f"{peer_name} did not answer in time: {why}")
    error.timed_out = True
    return error


def silent(peer_name: str, why: str) -> Away:
    """Nobody is there."""
    return Away(f"{peer_name} does not answer: {why}")


def turned_away(peer_name: str, why: str) -> Refused:
    """The peer does not let us in."""
    return Refused(f"{peer_name} refused the call: {why}")


def _first_line(error: Exception) -> str:
    # Arrow appends ". Detail: Failed" and, for bugs, the server's traceback
    return str(error).split(". Detail:")[0]
