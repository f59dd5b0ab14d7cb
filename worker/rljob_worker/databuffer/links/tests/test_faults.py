"""Errors across the wire keep their class, and any failure of a network is a lost peer."""

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.databuffer.links.faults import (
    broken_by,
    error_from,
    errors_of,
    from_flight,
    to_flight,
)
from rljob_worker.databuffer.protocol.errors import Away, Bug, Damaged, Elsewhere, Malformed, OutOfOrder, Refused
from rljob_worker.databuffer.protocol.peer_side import Broken
from rljob_worker.errors import BadData, DeadlineExceeded, InvalidJob, PeerLost, RLJobError, StopRequested, StorageError

WHOM = "the data buffer of host a-0"
KINDS = [
    BadData,
    Bug,
    DeadlineExceeded,
    InvalidJob,
    Malformed,
    OutOfOrder,
    PeerLost,
    Refused,
    StopRequested,
    StorageError,
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_ours_is_the_same_at_the_other_end(kind: type[RLJobError]):
    for again in (from_flight(to_flight(kind("what failed")), WHOM), error_from(broken_by(kind("what failed")))):
        assert type(again) is kind and str(again) == "what failed"


@pytest.mark.parametrize("kind", [Away, Damaged, Elsewhere])
def test_what_passes_names_the_peer_that_said_it(kind: type[RLJobError]):
    again = from_flight(to_flight(kind("what failed")), WHOM)
    assert type(again) is kind and str(again) == f"{WHOM}: what failed"


@pytest.mark.parametrize("named, kind", [(b"Refused", Refused), (b"Elsewhere", Elsewhere), (b"", Elsewhere)])
def test_a_refusal_is_final_only_if_the_peer_says_so(named: bytes, kind: type[RLJobError]):
    again = from_flight(flight.FlightUnauthorizedError("who are you", named), WHOM)
    assert type(again) is kind and str(again) == f"{WHOM} refused the call: who are you"


def test_a_message_is_cut_to_what_a_call_carries():
    assert str(to_flight(BadData("x" * 1800))) == "x" * 1800
    assert str(to_flight(BadData("x" * 1801))) == "x" * 1800 + " ..."
    assert str(to_flight(BadData("half \ud800"))) == "half ?"
    # two bytes each, and the first one of a pair is not shown alone
    assert str(to_flight(BadData("y" + "\u00e9" * 900))) == "y" + "\u00e9" * 899 + " ..."


@given(st.text(), st.text())
def test_a_kind_that_is_none_of_ours_is_a_bug(kind: str, words: str):
    error = error_from(Broken(kind, words))
    if kind not in {known.__name__ for known in (*KINDS, Away, Damaged, Elsewhere)}:
        assert type(error) is Bug and str(error) == f"{kind[:80]}: {words}"
        assert error.exit_code is ExitCode.BUG


def test_an_unknown_name_from_a_server_is_a_bug():
    for name in (b"KeyError", b"\xff\xfe", b"x" * 1000):
        error = from_flight(flight.FlightServerError("words", extra_info=name), WHOM)
        assert type(error) is Bug and str(error).endswith(": words") and len(str(error)) < 100


UNREACHABLE = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:5000: Failed to connect: "


@pytest.mark.parametrize(
    "raised, words, kind",
    [
        (flight.FlightUnavailableError(UNREACHABLE + "No route to host"), "does not answer: .*No route to host", Away),
        (flight.FlightUnavailableError(UNREACHABLE + "Network is unreachable"), "does not answer: .*unreachable", Away),
        (flight.FlightCancelledError("CANCELLED"), "does not answer: CANCELLED", Away),
        (flight.FlightTimedOutError("Deadline Exceeded"), "did not answer in time: Deadline Exceeded", Away),
        (flight.FlightInternalError("No route to host"), "cannot be reached: No route to host", PeerLost),
        (flight.FlightInternalError("Received RST_STREAM"), "cannot be reached: Received RST_STREAM", PeerLost),
        (OSError("No route to host"), "cannot be reached: No route to host", PeerLost),
        (flight.FlightServerError("Stream removed"), "cannot be reached: Stream removed", PeerLost),
        (pa.ArrowInvalid("Message is too large"), "cannot be reached: Message is too large", PeerLost),
        (pa.ArrowNotImplementedError("no such method"), "cannot be reached: no such method", PeerLost),
        (flight.FlightUnauthorizedError("who are you"), "refused the call: who are you", Elsewhere),
        (flight.FlightUnauthenticatedError("who are you"), "refused the call: who are you", Elsewhere),
    ],
)
def test_whatever_flight_raises_of_a_peer_is_a_lost_peer(raised: Exception, words: str, kind: type):
    with pytest.raises(PeerLost, match=f"^{WHOM} {words}$") as caught, errors_of(WHOM):
        raise raised
    assert type(caught.value) is kind and caught.value.exit_code is ExitCode.RETRY


def test_only_a_call_that_lasted_as_long_as_it_could_timed_out():
    late, gone = (
        from_flight(error("x"), WHOM) for error in (flight.FlightTimedOutError, flight.FlightUnavailableError)
    )
    assert isinstance(late, Away) and late.timed_out
    assert isinstance(gone, Away) and not gone.timed_out


def test_errors_of_ours_and_of_python_pass():
    for raised in (BadData("x"), StorageError("x"), DeadlineExceeded("x"), KeyError("x")):
        with pytest.raises(type(raised)), errors_of(WHOM):
            raise raised


def test_what_flight_adds_to_a_message_is_taken_off():
    error = from_flight(flight.FlightServerError("words. Detail: Failed. Traceback", extra_info=b"BadData"), WHOM)
    assert str(error) == "words"
