"""Certificates as a data buffer finds them in its files when it starts."""

import shutil
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rljob_api.certificates import issue
from rljob_worker.databuffer.links.credentials import read_credentials
from rljob_worker.databuffer.protocol.errors import NotValidNow
from rljob_worker.errors import InvalidJob, RLJobError
from rljob_worker.local.pods.certificates import write_issued

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
NAMES = ("a-0", "a-0.job.team.svc")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    issued = issue("job", 2, {"a-0": NAMES[1:], "a-1": ("a-1.job.team.svc",)}, NOW)
    write_issued(issued, tmp_path / "tls")
    write_issued(issue("job", 1, {"a-0": NAMES[1:]}, NOW), tmp_path / "before")
    return tmp_path / "tls" / "a-0"


def error_of(place: Path, now: datetime = NOW) -> RLJobError:
    with pytest.raises(RLJobError) as caught:
        read_credentials(place, NAMES, now)
    assert str(place) in str(caught.value)
    return caught.value


def test_files_of_this_host_are_read_and_the_key_is_never_shown(place: Path):
    credentials = read_credentials(place, NAMES, NOW)
    assert (
        credentials.authority == (place / "ca.crt").read_bytes() and credentials.key == (place / "tls.key").read_bytes()
    )
    assert "PRIVATE" not in repr(credentials)
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o600}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_files_are_read_once(place: Path):
    credentials = read_credentials(place, NAMES, NOW)
    shutil.rmtree(place)
    assert (
        credentials.of_server()["verify_client"]
        and credentials.of_server()["root_certificates"] == credentials.authority
    )
    assert credentials.of_client()["tls_root_certs"] == credentials.authority


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_a_file_that_is_not_there_or_no_file_is_named(place: Path, name: str):
    (place / name).unlink()
    error = error_of(place)
    assert isinstance(error, InvalidJob) and f"RLJOB_TLS_DIR: {place / name} cannot be read: No such file" in str(error)
    (place / name).mkdir()
    assert f"{place / name} cannot be read: Is a directory" in str(error_of(place))


@pytest.mark.parametrize(
    "name, words",
    [
        ("ca.crt", "not a certificate in PEM"),
        ("tls.crt", "not a certificate in PEM"),
        ("tls.key", "not a private key in PEM"),
    ],
)
@pytest.mark.parametrize("data", [b"", b"\xff\x00", b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"])
def test_a_file_of_something_else_is_named(place: Path, name: str, words: str, data: bytes):
    (place / name).write_bytes(data)
    error = error_of(place)
    assert isinstance(error, InvalidJob) and f"{place / name} is {words}" in str(error)
    assert "whoever starts the attempt issues ca.crt, tls.crt and tls.key anew for every attempt" in str(error)


def test_the_key_of_another_host_is_refused(place: Path):
    (place / "tls.key").write_bytes((place.parent / "a-1" / "tls.key").read_bytes())
    error = error_of(place)
    assert isinstance(error, InvalidJob) and "is not the key of the certificate tls.crt next to it" in str(error)


def test_the_authority_of_another_attempt_is_refused_by_name(place: Path):
    (place / "ca.crt").write_bytes((place.parents[1] / "before" / "a-0" / "ca.crt").read_bytes())
    error = error_of(place)
    was = "was issued by 'rljob job attempt 2', and this attempt has the authority 'rljob job attempt 1'"
    assert isinstance(error, InvalidJob) and was in str(error)


def test_another_authority_of_the_same_name_is_told_from_ours(place: Path, tmp_path: Path):
    write_issued(issue("job", 2, {"a-0": NAMES[1:]}, NOW), tmp_path / "namesake")
    (place / "ca.crt").write_bytes((tmp_path / "namesake" / "a-0" / "ca.crt").read_bytes())
    was = "was issued by 'rljob job attempt 2', and this attempt has another authority of that name"
    assert was in str(error_of(place))


def test_the_certificate_of_another_host_is_refused_with_its_names(place: Path):
    place = place.parent / "a-1"
    error = error_of(place)
    is_for = "is for a-1, a-1.job.team.svc, and not for a-0, a-0.job.team.svc"
    assert isinstance(error, InvalidJob) and is_for in str(error)


@pytest.mark.parametrize(
    "since, words",
    [
        # 30 days from noon of November 22
        (timedelta(days=40), "expired at 2026-12-22 12:00:00+00:00, and it is 2027-01-01 12:00:00+00:00"),
        # an hour is allowed for
        (timedelta(hours=-2), "is valid from 2026-11-22 11:00:00+00:00 on, and it is 2026-11-22 10:00:00+00:00 by the"),
    ],
)
def test_a_certificate_out_of_its_time_ends_the_attempt_and_not_the_job(place: Path, since: timedelta, words: str):
    error = error_of(place, NOW + since)
    assert isinstance(error, NotValidNow) and words in str(error) and error.exit_code == 75
