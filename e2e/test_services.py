"""Models beside a job: made before its gang, made again without it, given back with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.jobs import ON_STORAGE, ClusterJob, NamespaceJobs, metrics, small_spec

CODE = """
import time
from ray import serve

@serve.deployment
class Lengths:
    async def __call__(self, request):
        rows = (await request.json())["rows"]
        return {"rewards": [float(len(row["response"])) for row in rows]}

@serve.deployment
class Stuck:
    def __init__(self):
        time.sleep(3600)

app = Lengths.bind()
stuck = Stuck.bind()
"""
START_SECONDS = 400
"""Ray has processes of its own to start, five of them, on two cores that run a whole cluster."""


def spec(run: str = "my_models:app", **fields: Any) -> dict[str, Any]:
    """Two rewards, one of which a model gives; its calls are made again for as long as a start may take."""
    asks = {"name": "long", "run": "rljob_worker.rewards:served", "service": "grader", "weight": 0.01}
    waits = {"timeoutSeconds": 60, "onError": "Retry", "retries": 100, "backoffSeconds": 1.0}
    services = [{"name": "grader", "run": run, **fields.pop("service", {})}]
    correct = small_spec()["rewards"]
    known = {"rewards": [*correct, {**asks, **waits}], "services": services, "code": {"configMap": "models"}}
    patient = {"dataBuffer": {"memory": "32Mi", "deadlineSeconds": START_SECONDS}}
    return small_spec(**{**known, **patient, **ON_STORAGE, **fields})


@pytest.fixture
def code(jobs: NamespaceJobs) -> None:
    """The module with the models, as a job's own code."""
    jobs.kubectl("create", "configmap", "models", f"--from-literal=my_models.py={CODE}")


def until_trained(job: ClusterJob, step: int) -> None:
    job.until("healthy models", lambda: job.condition("ServicesReady").get("status") == "True", START_SECONDS)
    job.until_step(step)


def test_killed_model_is_made_again_and_the_job_ends_without_a_restart(
    jobs: NamespaceJobs, storage: Path, code: None
) -> None:
    job = jobs.apply("graded", spec(stop={"steps": 60}))
    job.until("a model", job.models, 30)
    assert [pod.name for pod in job.pods()] == ["graded-grader-r1"], "the gang waits for it"
    until_trained(job, 3)
    (model,) = job.models()
    model.kill("rljob_worker.services")
    job.until("a second start", lambda: job.status["services"][0]["start"] == 2)
    assert "exit code 137" in job.condition("ServicesReady")["message"]
    job.until_succeeded(START_SECONDS)
    status = job.status
    assert (status["attempt"], status["restarts"], status["services"][0]["failures"]) == (1, 0, 1)
    rows = metrics(storage, "graded")
    assert [row["step"] for row in rows] == list(range(1, 61)), "no step was lost"
    assert all(row["reward/long"] > 0 for row in rows)
    assert {"ServicesReady", "ServiceFailed"} <= set(jobs.events("graded"))
    job.until("no pod that runs", lambda: not any(pod.is_running for pod in job.pods()))


@pytest.mark.slow
def test_suspended_job_gives_its_model_back_too(jobs: NamespaceJobs, storage: Path, code: None) -> None:
    job = jobs.apply("paused", spec(stop={"steps": 200}))
    until_trained(job, 3)
    job.patch(suspend=True)
    job.until("suspension", lambda: job.condition("Suspended").get("status") == "True")
    assert job.pods() == [] and job.condition("ServicesReady")["reason"] == "ServicesStopped"
    job.patch(suspend=False)
    job.until("another attempt", lambda: job.status["attempt"] == 2, START_SECONDS)
    until_trained(job, 5)
    job.delete()
    job.until_gone(120)  # the last step of its gang may wait for the model, and has 60 s of grace for it


@pytest.mark.slow
def test_model_that_is_never_healthy_is_named_in_the_condition(jobs: NamespaceJobs, storage: Path, code: None) -> None:
    limits = {"service": {"healthSeconds": 3.0}, "failurePolicy": {"maxRestarts": 0}}
    stuck = jobs.apply("stuck", spec("my_models:stuck", **limits))
    absent = jobs.apply("absent", spec("my_models:absent", **limits))
    for job, words in (
        (absent, "my_models has no 'absent'"),
        (stuck, "is DEPLOYING and not healthy after healthSeconds 3"),
    ):
        job.until_phase("Failed", START_SECONDS)
        assert words in job.condition("ServicesReady")["message"]
        assert job.condition("Failed")["reason"] == "ServiceFailed"
        assert [pod.name for pod in job.pods()] == [f"{job.name}-grader-r1"], "no accelerator was ever taken"
