"""The secret of a job, and what is none."""

from pathlib import Path

import pytest

from rljob_worker.databuffer.links.token import MAX_CHARACTERS, check_token, read_token
from rljob_worker.errors import InvalidJob


def test_a_token_is_what_the_file_holds(tmp_path: Path):
    path = tmp_path / "token"
    path.write_text("a-secret\n")
    assert read_token({"RLJOB_TOKEN_FILE": str(path)}) == "a-secret"


@pytest.mark.parametrize("environment", [{}, {"RLJOB_TOKEN_FILE": ""}])
def test_without_a_file_there_is_no_token(environment: dict[str, str]):
    with pytest.raises(InvalidJob, match="RLJOB_TOKEN_FILE is not set; the supervisor or the operator sets it"):
        read_token(environment)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(InvalidJob, match="RLJOB_TOKEN_FILE .*/token cannot be read: .*No such file"):
        read_token({"RLJOB_TOKEN_FILE": str(tmp_path / "token")})


@pytest.mark.parametrize(
    "text, words",
    [
        (b"", "is empty: anybody could speak for this job; write a secret into it"),
        (b" \n", "is empty"),
        (b"two words", "holds no token: it has to be 1 to 512 visible ASCII characters"),
        ("s\u00e9cret".encode(), "holds no token"),
        (b"\x00\x01", "holds no token"),
        (b"\xff", "cannot be read"),
        (b"x" * 513, "holds no token"),
    ],
)
def test_what_is_no_token_is_refused_naming_the_variable_and_the_file(tmp_path: Path, text: bytes, words: str):
    path = tmp_path / "token"
    path.write_bytes(text)
    with pytest.raises(InvalidJob) as caught:
        read_token({"RLJOB_TOKEN_FILE": str(path)})
    assert f"RLJOB_TOKEN_FILE {path} {words}" in str(caught.value)


def test_the_longest_token_is_one():
    check_token("x" * MAX_CHARACTERS)
    check_token("!~")
    with pytest.raises(InvalidJob, match="^RLJOB_TOKEN_FILE is empty"):
        check_token("")
