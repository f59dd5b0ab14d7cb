"""Messages sealed with the secret of a launch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.errors import InvalidJob
from rljob_worker.supervision.hosts.secret import Foreign, Seals, data_token, launch_token, services_token

TOKEN = "0123456789abcdef"
ONE, OTHER = b"1" * 16, b"2" * 16


def pair(token=TOKEN, other_token=TOKEN):
    """Both sides of a connection."""
    return Seals(token, ONE, OTHER), Seals(other_token, OTHER, ONE)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=4))
def test_what_one_side_seals_the_other_opens_in_its_order(bodies):
    here, there = pair()
    assert [there.open(here.seal(body)) for body in bodies] == bodies
    assert [here.open(there.seal(body)) for body in bodies] == bodies


def test_nobody_else_reads_or_writes_it():
    here, there = pair(other_token="another0123456789")
    sealed = here.seal(b"plan")
    assert b"plan" not in sealed
    with pytest.raises(Foreign):
        there.open(sealed)
    with pytest.raises(Foreign):
        pair()[1].open(b"plan")


def test_what_was_recorded_opens_nothing():
    here, there = pair()
    first, second = here.seal(b"1"), here.seal(b"2")
    assert there.open(first) == b"1"
    with pytest.raises(Foreign):
        there.open(first)  # again
    with pytest.raises(Foreign):
        here.open(second)  # back to its sender
    with pytest.raises(Foreign):
        Seals(TOKEN, OTHER, b"3" * 16).open(second)  # of another connection
    with pytest.raises(Foreign):
        pair()[1].open(second)  # without the first


def test_data_buffers_show_another_token_which_tells_nothing_of_the_first():
    for made in (data_token, services_token):
        assert made(TOKEN) == made(TOKEN) != made(TOKEN + "0") and TOKEN not in made(TOKEN)
    assert services_token(TOKEN) != data_token(TOKEN), "workers show it to models, which are anybody's code"


@pytest.mark.parametrize(
    ("environment", "words"),
    [({}, "RLJOB_TOKEN is not set"), ({"RLJOB_TOKEN": "short"}, "not a secret of 16"),
     ({"RLJOB_TOKEN": "0123456789 abcdef"}, "visible"), ({"RLJOB_TOKEN": "ä" * 16}, "visible")],
)  # fmt: skip
def test_a_token_that_anybody_could_guess_is_refused_with_what_to_do(environment, words):
    with pytest.raises(InvalidJob, match="openssl rand -hex 32") as caught:
        launch_token(environment)
    assert words in str(caught.value)
