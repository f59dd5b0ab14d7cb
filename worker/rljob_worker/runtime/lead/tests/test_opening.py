"""How a run is opened: new, resumed, or refused."""

import dataclasses
import json

import pytest

from rljob_api.loading.structure import check_structure
from rljob_worker.checkpoint.manifest import committed
from rljob_worker.checkpoint.restore import ResumePoint
from rljob_worker.checkpoint.tests.builders import commit
from rljob_worker.errors import InvalidJob
from rljob_worker.rundir.ownership import Owner, owner_of
from rljob_worker.rundir.plan import read_plan
from rljob_worker.runtime.lead.opening import open_run
from rljob_worker.runtime.setup.environment import WorkerEnvironment
from rljob_worker.storage.tests.s3_server import s3_bucket
from rljob_worker.tests.documents import plan_of

FIRST, SECOND = "1111aaaa-0000-4000-8000-000000000000", "2222bbbb-0000-4000-8000-000000000000"


def environment(tmp_path, run_id=FIRST, attempt=1, plan=None, **changes):
    fields = {
        "plan": plan or plan_of(), "group": "train", "host_index": 0, "local_rank": 0, "attempt": attempt, "peers": "",
        "buffer_socket": "", "token": "", "run_dir": tmp_path / "runs" / "tiny", "resume": "auto", "run_id": run_id,
    }  # fmt: skip
    return WorkerEnvironment(**fields | changes)


def with_group_size(plan, size):
    algorithm = plan.spec.algorithm.model_copy(update={"group_size": size})
    return plan.model_copy(update={"spec": plan.spec.model_copy(update={"algorithm": algorithm})})


def test_a_new_run_begins_at_step_0_and_belongs_to_its_attempt(tmp_path):
    lead = environment(tmp_path)
    assert open_run(lead) == ResumePoint()
    assert owner_of(lead.run_dir) == Owner(1, FIRST)


def test_the_next_attempt_goes_on_from_the_last_checkpoint(tmp_path):
    first = environment(tmp_path)
    open_run(first)
    path = commit(first.run_dir, first.owner, 2)
    assert open_run(environment(tmp_path, attempt=2)) == ResumePoint(2, path)


def test_a_new_job_of_the_same_name_goes_on_although_the_old_one_had_more_attempts(tmp_path):
    old = environment(tmp_path, attempt=5)
    open_run(old)
    path = commit(old.run_dir, old.owner, 2)
    new = environment(tmp_path, SECOND)
    assert open_run(new) == ResumePoint(2, path)
    assert owner_of(new.run_dir) == Owner(1, SECOND)


def test_a_new_job_that_changes_what_a_run_cannot_change_is_refused_and_nothing_is_lost(tmp_path):
    old = environment(tmp_path)
    open_run(old)
    commit(old.run_dir, old.owner, 2)
    size = old.plan.spec.algorithm.group_size
    changed = with_group_size(old.plan, size * 2)
    with pytest.raises(InvalidJob, match=f"spec.algorithm.groupSize: {size} -> {size * 2}: rows are numbered by it"):
        open_run(environment(tmp_path, SECOND, plan=changed))
    assert owner_of(old.run_dir) == Owner(1, FIRST)
    assert [checkpoint.step for checkpoint in committed(old.run_dir / "checkpoints")] == [2]


def test_a_job_that_never_resumes_refuses_the_run_of_another_job(tmp_path):
    old = environment(tmp_path)
    open_run(old)
    commit(old.run_dir, old.owner, 2)
    with pytest.raises(InvalidJob, match="holds a run already and resume is never"):
        open_run(environment(tmp_path, SECOND, resume="never"))
    assert [checkpoint.step for checkpoint in committed(old.run_dir / "checkpoints")] == [2]


def test_what_a_run_leaves_says_nothing_that_its_job_does_not_say(tmp_path):
    """A version that lacks a field reads it, unless the job uses the field; the same job is read from it."""
    lead = environment(tmp_path)
    open_run(lead)
    document = json.loads((lead.run_dir / "job.yaml").read_text())
    assert "logging" not in document["spec"] and "profile" not in document["spec"].get("training", {})
    (existing, problems) = check_structure(document)
    assert problems == [] and existing.spec == lead.plan.spec


def test_a_plan_of_another_version_is_refused_with_what_is_unknown(tmp_path):
    plan = json.loads(plan_of().canonical_json())
    plan["spec"]["rewards"][0]["somethingNew"] = plan["newer"] = 1
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(InvalidJob, match=r"another version of rljob: .* newer.*; take operator and images") as caught:
        read_plan(tmp_path / "plan.json")
    assert "spec.rewards[0].somethingNew" in str(caught.value)


def test_a_store_that_is_not_there_or_not_open_is_the_jobs_mistake(tmp_path, monkeypatch):
    with s3_bucket("runs", monkeypatch) as s3:
        for url, words in (("s3://others/tiny", "there is no such bucket"), ("s3://runs/tiny", "the store refuses")):
            with pytest.raises(InvalidJob, match=f"spec.storage.objectStore: {url}: {words}"):
                open_run(environment(tmp_path, store=url))
            s3.require_credentials()


def test_on_one_machine_the_supervisor_has_decided(tmp_path):
    lead = environment(tmp_path, run_id="", resume="never")
    open_run(lead)
    commit(lead.run_dir, lead.owner, 2)
    assert open_run(environment(tmp_path, run_id="", attempt=2, resume="never")) == ResumePoint()
    assert not (lead.run_dir / "job.yaml").exists()


def test_without_shared_storage_the_lead_says_so_once(tmp_path, caplog):
    lead = dataclasses.replace(environment(tmp_path), keeps_checkpoints=False)
    open_run(lead)
    assert "no checkpoints" in caplog.text and "spec.storage" in caplog.text
