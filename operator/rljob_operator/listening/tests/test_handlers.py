"""What kopf is configured to leave alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import kopf
import pytest

from rljob_operator.listening.handlers import kopf_settings


class Unread(Mapping[str, Any]):
    """An object that nobody may look at."""

    def __getitem__(self, name: str) -> Any:
        raise AssertionError(f"{name} was read")

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("the object was copied")

    def __len__(self) -> int:
        raise AssertionError("the object was measured")


def test_a_job_is_not_copied_to_find_out_what_changed() -> None:
    """At a start kopf hears of every job there is, and a copy of one costs more than all that we do about it."""
    storage = kopf_settings().persistence.diffbase_storage
    body: Any = Unread()
    assert storage.build(body=body, extra_fields={("status",)}) == {} and storage.fetch(body=body) is None


def test_nothing_is_stored_in_the_cluster() -> None:
    settings = kopf_settings()
    assert not settings.posting.enabled
    with pytest.raises(AssertionError, match="no handler of ours"):
        settings.persistence.diffbase_storage.store(body=kopf.Body({}), patch=kopf.Patch(), essence=kopf.BodyEssence())


def test_two_pages_of_the_largest_jobs_fit_into_the_operators_memory() -> None:
    """kopf holds one while it reads the next; 1.5 MiB of empty lists are 32 MiB as Python's."""
    chunk_size = kopf_settings().watching.chunk_size
    assert chunk_size is not None and 2 * chunk_size * 32 < 512 - 100
