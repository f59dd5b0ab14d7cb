"""Which attempt of which job owns a run directory."""

import pytest

from rljob_worker.checkpoint.manifest import committed, directory_name
from rljob_worker.checkpoint.tests.builders import commit
from rljob_worker.errors import StorageError
from rljob_worker.rundir.ownership import Owner, claim_run, owner_of

OLD = "0a1b2c3d-0000-4000-8000-000000000001"
NEW = "9f8e7d6c-0000-4000-8000-000000000002"


def test_nobody_owns_a_new_directory(tmp_path):
    assert owner_of(tmp_path) == Owner(0)


@pytest.mark.parametrize("owner", [Owner(3), Owner(3, OLD)])
def test_who_claims_is_the_owner(tmp_path, owner):
    claim_run(tmp_path, owner)
    assert owner_of(tmp_path) == owner


def test_an_attempt_that_has_the_run_may_claim_it_again(tmp_path):
    """Its process was started anew."""
    for _ in range(2):
        claim_run(tmp_path, Owner(2, OLD))
    assert owner_of(tmp_path) == Owner(2, OLD)


def test_a_later_attempt_of_the_same_job_keeps_an_earlier_one_out(tmp_path):
    claim_run(tmp_path, Owner(2, OLD))
    with pytest.raises(StorageError, match="belongs to attempt 2 of job 0a1b2c3d.*this is attempt 1"):
        claim_run(tmp_path, Owner(1, OLD))


def test_a_new_job_takes_over_from_higher_attempts_of_a_deleted_one(tmp_path):
    claim_run(tmp_path, Owner(7, OLD))
    claim_run(tmp_path, Owner(1, NEW))
    path = commit(tmp_path, Owner(1, NEW), 4)
    assert path.name == "step-00000004-attempt-1-9f8e7d6c"
    assert [result.step for result in committed(tmp_path / "checkpoints")] == [4]


def test_a_lost_pod_of_a_deleted_job_cannot_commit_nor_touch_its_successors_files(tmp_path):
    claim_run(tmp_path, Owner(1, OLD))
    claim_run(tmp_path, Owner(1, NEW))
    with pytest.raises(StorageError, match="0a1b2c3d.* may not commit step 4: the run belongs to .*9f8e"):
        commit(tmp_path, Owner(1, OLD), 4)
    assert directory_name(4, Owner(1, OLD)) != directory_name(4, Owner(1, NEW))
