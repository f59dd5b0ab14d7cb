"""Who may call a data buffer: pure rules over headers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.databuffer.links.fencing import (
    DATA_BUFFER,
    BufferService,
    Fence,
    Identity,
    InvalidCaller,
    check_caller,
    headers_of,
    read_headers,
)
from rljob_worker.databuffer.links.tests.pair import PLAN, groups, identity
from rljob_worker.databuffer.protocol.errors import Refused
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.errors import InvalidJob

A, B = Host("a", 0), Host("b", 0)
GROUPS = {group.name: group for group in groups(num_hosts=4, workers_per_host=2)}


def headers(caller: Identity, expected: str | None = None) -> dict[str, list[Any]]:
    return {name.decode(): [value.decode()] for name, value in headers_of(caller, A, "ours", expected)}


def why(caller: Identity, side: BufferService, ours: Identity | None = None, to: Host | None = None) -> str | None:
    """Why a caller who means this data buffer, or another one, is not let in."""
    ours = ours or identity(A)
    try:
        check_caller(caller, str(to or ours.pod), ours, side, GROUPS)
    except InvalidCaller as error:
        return str(error) if error.kind is Refused else f"{error.kind.__name__}: {error}"
    return None


def test_an_identity_is_read_as_it_was_shown():
    caller = identity(Host("b", 3), rank=7)
    assert read_headers(headers(caller)) == caller
    assert caller.worker == WorkerId("b", 7) and caller.pod == Host("b", 3)
    assert read_headers(headers(identity(B))).rank == DATA_BUFFER == -1
    assert headers(caller)["x-rljob-life"] == ["ours"] and headers(caller)["x-rljob-to"] == ["a-0"]
    assert "x-rljob-expects" not in headers(caller)
    assert headers(caller, "theirs")["x-rljob-expects"] == ["theirs"]


def test_nobody_shows_an_empty_token():
    with pytest.raises(InvalidJob, match="RLJOB_TOKEN_FILE is empty"):
        headers_of(identity(A, token=""), B, "life", None)
    with pytest.raises(InvalidJob, match="RLJOB_TOKEN_FILE is empty"):
        Fence(identity(A, token=""), "life", BufferService.PEERS, groups())


@pytest.mark.parametrize("caller", [identity(B, token=""), identity(B)])
def test_an_empty_token_is_never_accepted(caller: Identity):
    assert (
        why(caller, BufferService.PEERS, identity(A, token=""))
        == "this data buffer has no token: RLJOB_TOKEN_FILE is empty"
    )


@pytest.mark.parametrize(
    "lie, reason",
    [
        ({"token": ""}, "Elsewhere: b-0 does not have the token of this job"),
        ({"token": "guessed"}, "Elsewhere: b-0 does not have the token of this job"),
        ({"token": "s\u00e9cret"}, "Elsewhere: b-0 does not have the token of this job"),
        ({"attempt": 0}, "b-0 is of attempt 0, this data buffer serves attempt 1"),
        ({"attempt": 2}, "Elsewhere: b-0 is of attempt 2, this data buffer serves attempt 1"),
        ({"plan_hash": "e" * 64}, "b-0 runs plan eeeeeeeeeeee, this data buffer serves plan ffffffffffff"),
        ({"group": "c"}, "the plan has no host c-0"),
        ({"host": -1}, "the plan has no host b--1"),
        ({"host": 4}, "the plan has no host b-4"),
        ({"rank": 0}, "rank 0 of group b speaks to the side for other data buffers"),
        ({"rank": -2}, "rank -2 of group b speaks to the side for other data buffers"),
        ({"group": "a"}, "a second data buffer of host a-0"),
    ],
)
def test_a_stranger_among_the_peers_is_refused_by_name(lie: dict[str, Any], reason: str):
    assert why(identity(B), BufferService.PEERS) is None and why(identity(Host("b", 3)), BufferService.PEERS) is None
    assert why(identity(B, **lie), BufferService.PEERS) == reason


@pytest.mark.parametrize(
    "lie, reason",
    [
        ({"token": ""}, "Elsewhere: a-0 does not have the token of this job"),
        ({"rank": -1}, "the data buffer of host a-0 speaks to the side for the workers of its host"),
        ({"rank": -2}, "the plan has no rank -2 of group a on host a-0"),
        ({"rank": 2}, "the plan has no rank 2 of group a on host a-0"),
        ({"rank": 8}, "the plan has no rank 8 of group a on host a-0"),
        ({"rank": 2, "host": 1}, "rank 2 of group a is of host a-1, this is host a-0"),
        ({"group": "b"}, "rank 1 of group b is of host b-0, this is host a-0"),
    ],
)
def test_a_stranger_among_the_workers_is_refused_by_name(lie: dict[str, Any], reason: str):
    for rank in (0, 1):
        assert why(identity(A, rank=rank), BufferService.WORKERS) is None
    assert why(identity(Host("b", 3), rank=7), BufferService.WORKERS, identity(Host("b", 3))) is None
    assert why(identity(A, **{"rank": 1, **lie}), BufferService.WORKERS) == reason


def test_who_means_another_one_is_sent_elsewhere():
    assert why(identity(B), BufferService.PEERS, to=Host("a", 1)) == "Elsewhere: this is the data buffer of host a-0"
    # a host whose own address another one had before
    assert why(identity(A), BufferService.PEERS, to=B) == "Elsewhere: this is the data buffer of host a-0"


@pytest.mark.parametrize("name", ["token", "attempt", "plan", "group", "host", "rank"])
@pytest.mark.parametrize(
    "values, words",
    [
        ([], "a call shows 0 values of x-rljob-{}, not one"),
        (["1", "1"], "a call shows 2 values of x-rljob-{}, not one"),
        ([""], "a call's x-rljob-{} is not 1 to 512 visible ASCII characters"),
        (["9" * 513], "a call's x-rljob-{} is not 1 to 512 visible ASCII characters"),
        (["a b"], "a call's x-rljob-{} is not 1 to 512 visible ASCII characters"),
        ([b"1"], "a call's x-rljob-{} is not 1 to 512 visible ASCII characters"),
        (["\u0661"], "a call's x-rljob-{} is not 1 to 512 visible ASCII characters"),
    ],
)
def test_headers_that_nobody_sends_are_refused_by_name(name: str, values: list[Any], words: str):
    shown = {**headers(identity(B)), f"x-rljob-{name}": values}
    with pytest.raises(InvalidCaller) as caught:
        read_headers(shown)
    assert str(caught.value) == words.format(name)


@pytest.mark.parametrize("name", ["attempt", "host", "rank"])
@pytest.mark.parametrize("value", ["x", "1.0", "--1", "+1", "1_0", "0x1", "9" * 10, "1e3", "-"])
def test_numbers_that_are_none_are_refused_by_name(name: str, value: str):
    shown = {**headers(identity(B)), f"x-rljob-{name}": [value]}
    with pytest.raises(InvalidCaller, match=f"a call's x-rljob-{name} is .*, no number of up to 9 digits"):
        read_headers(shown)


def test_the_largest_number_is_one():
    shown = {**headers(identity(B)), "x-rljob-attempt": ["9" * 9], "x-rljob-host": ["-" + "9" * 9]}
    assert (read_headers(shown).attempt, read_headers(shown).host) == (999_999_999, -999_999_999)


@given(st.dictionaries(st.sampled_from([*headers(identity(B))]), st.lists(st.text(max_size=20), max_size=2)))
def test_whatever_is_shown_is_read_or_refused(lies: dict[str, list[str]]):
    try:
        caller = read_headers({**headers(identity(B)), **lies})
    except InvalidCaller as error:
        assert str(error).startswith("a call") and len(str(error)) < 200
    else:
        assert why(caller, BufferService.PEERS) is None or set(lies) & set(headers(identity(B)))
        assert len(PLAN) == 64
