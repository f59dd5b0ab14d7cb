"""Versions of weights that a checkpoint keeps: read again by another number of sources, on a disk and in a bucket."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.tests.builders import make_plan
from rljob_worker.checkpoint.manifest import committed, damage, directory_name
from rljob_worker.checkpoint.tests.builders import committer
from rljob_worker.checkpoint.versions import KeptVersion, kept_versions, read_chunks, require_versions
from rljob_worker.checkpoint.writer import RankFiles, RankPart
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.rundir.ownership import Owner, claim_run
from rljob_worker.storage.paths import storage_path
from rljob_worker.storage.tests.s3_server import s3_bucket


@pytest.fixture(params=["disk", "bucket"])
def home(request, tmp_path, monkeypatch):
    if request.param == "disk":
        yield tmp_path
        return
    with s3_bucket("runs", monkeypatch):
        yield storage_path("s3://runs/team/tiny")


def chunks(source, version, sizes=(5, 0, 3)):
    """Tables that say what they are of, and bytes that do not repeat."""
    rng = np.random.default_rng([source, version])
    return [(f"{source} {i}".encode(), rng.integers(0, 256, size, dtype=np.uint8)) for i, size in enumerate(sizes)]


def read(files, number, num_sources):
    return [(table, data.tolist()) for table, data in read_chunks(files, number, num_sources)]


def as_lists(parts):
    return [(table, data.tolist()) for table, data in parts]


def test_what_sources_keep_is_read_by_fewer_and_by_more(home):
    home.mkdir(parents=True, exist_ok=True)
    for source in range(3):
        for version in (18, 19):
            KeptVersion("actor", version, source, chunks(source, version)).write(home)
    KeptVersion("my-actor", 7, 0, chunks(9, 9)).write(home)
    result = kept_versions(home, "actor")
    assert list(result) == [18, 19] and list(kept_versions(home, "my-actor")) == [7]
    assert read(result[18], 1, 3) == as_lists(chunks(1, 18))
    # two sources of three: the first sends again what the first and the third had
    assert read(result[19], 0, 2) == as_lists(chunks(0, 19) + chunks(2, 19))
    assert read(result[19], 1, 2) == as_lists(chunks(1, 19))
    assert read(result[19], 4, 5) == []


def test_they_are_part_of_the_checkpoint_and_of_what_is_checked(home):
    owner = Owner(1, "1111aaaa")
    claim_run(home, owner)
    kept = KeptVersion("actor", 3, 0, chunks(0, 3))
    for group in ("train", "rollout"):
        RankFiles(home, owner, group, 0).write(4, RankPart.copy({}, {}, versions=[kept] if group == "train" else []))
    committer(home, owner, ranks=(("train", 0), ("rollout", 0))).commit(4, score=None)
    (checkpoint,) = committed(home / "checkpoints")
    assert "version-actor-3-0.arrow" in checkpoint.manifest.files and damage(checkpoint) is None
    (home / "checkpoints" / directory_name(4, owner) / "version-actor-3-0.arrow").unlink()
    assert "version-actor-3-0.arrow" in damage(checkpoint)


def test_a_file_that_is_none_is_named(tmp_path):
    path = KeptVersion("actor", 3, 0, chunks(0, 3)).write(tmp_path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(StorageError, match="version-actor-3-0.arrow cannot be read"):
        list(read_chunks([path], 0, 1))


@given(staleness=st.integers(0, 3), before=st.integers(0, 3), redraws=st.booleans())
def test_a_job_goes_on_with_the_versions_that_it_needs_or_says_which_are_missing(
    tmp_path_factory, staleness, before, redraws
):
    """A checkpoint of step 9 by a job with another staleness."""
    folder = tmp_path_factory.mktemp("checkpoint")
    for version in range(9 - before, 9):
        KeptVersion("actor", version, 0, []).write(folder)
    overrides = ["checkpoint.versions=Redraw"] if redraws else []
    spec = make_plan(*overrides).spec
    spec = spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"max_staleness": staleness})})
    if redraws or staleness == before:
        require_versions(folder, 9, spec)
        return
    with pytest.raises(InvalidJob, match=f"the checkpoint of step 9 keeps .* with rollout.maxStaleness {staleness}"):
        require_versions(folder, 9, spec)
