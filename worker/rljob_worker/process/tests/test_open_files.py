"""The limit of open files is raised and never lowered."""

import resource
from collections.abc import Iterator

import pytest

from rljob_worker.process.open_files import allow_files


@pytest.fixture
def most() -> Iterator[int]:
    """What this process may have, of which it has asked for 200 only."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def allowed() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def test_more_files_are_asked_for_and_never_fewer(most: int):
    allow_files(300)
    assert allowed() == (300, most)
    allow_files(250)
    assert allowed() == (300, most)


def test_no_more_are_asked_for_than_there_are(most: int):
    if most == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 4000))
        most = 4000
    allow_files(most + 1)
    assert allowed() == (most, most)
