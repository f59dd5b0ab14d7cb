"""Suspend, resume, delete, expire; and an operator that dies at every turn."""

from pathlib import Path

import pytest

from e2e.cluster.waiting import wait_until
from e2e.jobs import BYTES, ON_STORAGE, NamespaceJobs, metrics, small_spec
from e2e.operator import InstalledOperator
from rljob_worker.tests.metrics import without_times

WORKER = "rljob_worker.runtime"


def test_suspended_job_gives_its_pods_back_and_goes_on_where_it_was(jobs: NamespaceJobs, storage: Path) -> None:
    job = jobs.apply("paused", small_spec(stop={"steps": 60}, **ON_STORAGE))
    job.until_step(3)
    job.patch(suspend=True)
    job.until_phase("Suspended")
    assert not job.pods()
    assert job.condition("Suspended")["status"] == "True"
    stopped_at = len(metrics(storage, "paused"))
    job.patch(suspend=False)
    job.until_succeeded()
    assert job.status["attempt"] == 2 and job.status.get("restarts", 0) == 0
    assert 3 <= stopped_at < 60
    assert job.resumed_from() == {stopped_at}
    assert [row["step"] for row in metrics(storage, "paused")] == list(range(1, 61))


def test_deleted_job_leaves_nothing_but_checkpoints(jobs: NamespaceJobs, storage: Path) -> None:
    job = jobs.apply("gone", small_spec(stop={"steps": 500}, **ON_STORAGE))
    job.until("a checkpoint", lambda: (job.status.get("progress") or {}).get("checkpointStep"))
    job.delete()
    job.until_gone()
    assert list((storage / "runs" / "gone" / "checkpoints").glob("step-*"))


def test_finished_job_expires_and_one_of_its_name_starts_afresh_on_its_own_storage(jobs: NamespaceJobs) -> None:
    lifecycle = {"ttlSecondsAfterFinished": 1, "cleanPodPolicy": "None"}
    first = jobs.apply("again", small_spec(stop={"steps": 2}, lifecycle=lifecycle))
    names = lambda: jobs.kubectl("get", "rlj", "-o", "name")  # noqa: E731
    wait_until(lambda: not names(), "the job to expire", 120, 0.5)
    assert "Succeeded" in jobs.events("again")
    first.until_gone()
    second = jobs.apply("again", small_spec(stop={"steps": 3}))
    second.until_succeeded()
    assert second.status["attempt"] == 1


@pytest.mark.slow
def test_upgrade_leaves_running_jobs_alone(jobs: NamespaceJobs, operator: InstalledOperator) -> None:
    """The operator that comes would render other pods; those that run stay, and later jobs get the new ones."""
    job = jobs.apply("running", small_spec(stop={"steps": 150}))
    job.until_step(1)
    before, operators = job.pods()[0], operator.pods()
    operator.install("--set", "settings.pods.env.SITE=new")
    try:
        assert not set(operator.pods()) & set(operators), "the new settings began a new operator"
        job.until_succeeded()
        assert [pod.uid for pod in job.pods()] == [before.uid]
        assert (job.status["attempt"], job.status["restarts"]) == (1, 0)
        later = jobs.apply("later", small_spec(stop={"steps": 1}))
        later.until("a pod", later.pods)
        assert {"name": "SITE", "value": "new"} in later.pods()[0].body["spec"]["containers"][0]["env"]
    finally:
        operator.install()


@pytest.mark.slow
def test_operator_killed_at_every_transition(jobs: NamespaceJobs, storage: Path, operator: InstalledOperator) -> None:
    """At every change of phase the operator is killed; counters and metrics end as if it had lived."""
    long = small_spec(stop={"steps": 300}, **ON_STORAGE)  # a new operator takes seconds, a step 0.1 s
    undisturbed = jobs.apply("calm", long)
    job = jobs.apply("hunted", long)
    operator.kill()
    job.until_phase("Running")
    operator.kill()
    job.until_step(3)
    job.pods()[0].kill(WORKER)
    operator.kill()
    job.until("a second attempt", lambda: job.status.get("attempt") == 2)
    operator.kill()
    job.until_phase("Running")
    job.patch(suspend=True)
    operator.kill()
    job.until("suspending", lambda: job.phase in ("Suspending", "Suspended"))
    operator.kill()
    job.until_phase("Suspended")
    job.patch(suspend=False)
    operator.kill()
    job.until_succeeded(180)
    operator.kill()
    undisturbed.until_succeeded()
    assert (job.status["attempt"], job.status["restarts"]) == (3, 1)
    (resumed_from,) = job.resumed_from()
    assert 0 < resumed_from < 300
    assert without_times(metrics(storage, "hunted"), BYTES) == without_times(metrics(storage, "calm"), BYTES)
