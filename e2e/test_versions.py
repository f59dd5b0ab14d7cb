"""Up from the version before and back to it: chart, definition, operator and images, with jobs running."""

from pathlib import Path

import pytest

from e2e.cluster.images.version_before import TAG, checkout
from e2e.jobs import ON_STORAGE, ClusterJob, NamespaceJobs, metrics, small_spec
from e2e.operator import InstalledOperator

WORKER = "rljob_worker.runtime"
UNTIL_RELEASED = "import os\n\ndef score(row):\n    return 2.0 if os.path.exists('/workspace/enough') else 1.0\n"


def endless(**reward: str) -> dict[str, object]:
    """A job that runs until there is a file `enough` on its storage. reward: more fields of its reward."""
    rewards = [{"name": "told", "run": "told:score", **reward}]
    stop = {"steps": 100_000, "rewardAbove": 1.5}
    return small_spec(rewards=rewards, stop=stop, code={"configMap": "told"}, **ON_STORAGE)


def goes_on(job: ClusterJob) -> None:
    """Ten steps more: each status is a second old at most, and steps are shorter."""
    job.until_step(job.step + 10)


def made_for(job: ClusterJob) -> set[str]:
    return {*job.children(), *(pod.uid for pod in job.pods())}


@pytest.mark.slow
def test_jobs_run_on_while_the_operator_goes_up_from_the_version_before_and_back(
    jobs: NamespaceJobs, storage: Path, operator: InstalledOperator
) -> None:
    """Beside the running attempt: one of the older version that is restarted by the newer, from its checkpoint; and a
    job with a field that the older version does not know."""
    jobs.kubectl("create", "configmap", "told", f"--from-literal=told.py={UNTIL_RELEASED}")
    operator.install("--set", f"images.tag={TAG}", version=checkout())
    try:
        older = operator.pods()
        old = jobs.apply("old", endless())
        old.until("a checkpoint", lambda: (old.status.get("progress") or {}).get("checkpointStep"))
        made = made_for(old)

        operator.install()
        assert not set(operator.pods()) & set(older)
        goes_on(old)
        assert made_for(old) == made and old.status["attempt"] == 1
        new = jobs.apply("new", endless(onError="Zero"))
        old.pods()[0].kill(WORKER)
        old.until("a second attempt", lambda: old.status.get("attempt") == 2)
        for job in (old, new):
            job.until_phase("Running")
            goes_on(job)
        (resumed_from,) = old.resumed_from()
        running = [pod.uid for job in (old, new) for pod in job.pods()]

        operator.roll_back()
        for job in (old, new):
            goes_on(job)
        assert [pod.uid for job in (old, new) for pod in job.pods()] == running
        (storage / "enough").touch()
        for job in (old, new):
            job.until_succeeded()
    finally:
        operator.install()

    assert resumed_from > 0
    assert [(job.status["attempt"], job.status["restarts"]) for job in (old, new)] == [(2, 1), (1, 0)]
    for job in (old, new):
        steps = [row["step"] for row in metrics(storage, job.name)]
        assert steps == list(range(1, job.step + 1))
