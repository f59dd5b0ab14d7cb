"""Certificates of the hosts of a run on this machine."""

import stat
from pathlib import Path

import pytest

from rljob_worker.errors import StorageError
from rljob_worker.tests.certificates import issue_here
from rljob_worker.tests.documents import plan_of

PLAN = plan_of(groups=[("train", 2, 2), ("rollout", 1, 4)])


def test_every_host_gets_a_directory_with_its_own_key_alone(tmp_path: Path):
    issue_here(PLAN, 1, tmp_path / "tls-1")
    hosts = sorted((tmp_path / "tls-1").iterdir())
    assert [host.name for host in hosts] == ["rollout-0", "train-0", "train-1"]
    for host in hosts:
        assert stat.S_IMODE(host.stat().st_mode) == 0o700
        files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in host.iterdir()}
        assert files == {"ca.crt": 0o600, "tls.crt": 0o600, "tls.key": 0o600}
    assert len({(host / "tls.key").read_bytes() for host in hosts}) == 3
    assert len({(host / "ca.crt").read_bytes() for host in hosts}) == 1


def test_the_next_attempt_has_another_authority(tmp_path: Path):
    for attempt in (1, 2):
        issue_here(PLAN, attempt, tmp_path / f"tls-{attempt}")
    first, second = ((tmp_path / f"tls-{attempt}" / "train-0" / "ca.crt").read_bytes() for attempt in (1, 2))
    assert first != second


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=f"certificates cannot be written to {tmp_path}/file/tls: Not a directory"):
        issue_here(PLAN, 1, tmp_path / "file" / "tls")
