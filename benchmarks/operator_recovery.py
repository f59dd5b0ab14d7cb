"""How soon a job goes on after something of it died, on a real cluster with the values of `e2e/values.yaml`.

    python benchmarks/operator_recovery.py [--repeats 5] [--index 6]

Needs what `make e2e` needs.  Two real kubelets, a job of two pods on two nodes.  Each time a worker process or a data
buffer gets SIGKILL, or a pod is deleted; measured from there, on this machine's clock:

    created    the last pod of the next attempt is there
    ready      all pods are ready
    step       the first step after the resumption is finished
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from e2e.cluster import Cluster
from e2e.cluster.waiting import wait_until
from e2e.jobs import ON_STORAGE, Job, Jobs, small_spec
from e2e.operator import Operator
from e2e.storage import Storage

NUM_PODS = 2
WORKER, BUFFER = "rljob_worker.runtime", "rljob_worker.databuffer"
Death = Callable[[Jobs, Job], None]


def delete_pod(jobs: Jobs, job: Job) -> None:
    jobs.kubectl("delete", "pod", job.pods()[0].name, "--force", "--grace-period=0", "--wait=false")


DEATHS: dict[str, Death] = {
    "worker killed": lambda jobs, job: job.pods()[0].kill(WORKER),
    "data buffer killed": lambda jobs, job: job.pods()[1].kill(BUFFER),
    "pod deleted by force": delete_pod,
}


def start(jobs: Jobs, name: str) -> Job:
    """A job that runs for long, with a checkpoint every second step."""
    group = {"name": "train", "replicas": NUM_PODS, "accelerator": {"profile": "cpu", "count": 1}}
    policy = {"maxRestarts": 1000}
    spec = small_spec(workerGroups=[group], stop={"steps": 100_000}, failurePolicy=policy, **ON_STORAGE)
    job = jobs.apply(name, spec)
    job.until_step(3)
    return job


def recovery(jobs: Jobs, job: Job, death: Death) -> tuple[float, float, float]:
    """Seconds until pods are created, until they are ready, until a step is finished."""
    attempt, step = job.status["attempt"], job.step
    job.until_step(step + 3)
    death(jobs, job)
    began = time.monotonic()

    def reached(is_reached: Callable[[], bool]) -> float:
        wait_until(is_reached, f"{job.name} after attempt {attempt}", 180, 0.05)
        return time.monotonic() - began

    created = reached(lambda: sum(pod.attempt > attempt for pod in job.pods()) == NUM_PODS)
    ready = reached(lambda: job.phase == "Running" and job.status["attempt"] > attempt)
    resumed = job.step
    return created, ready, reached(lambda: job.step > resumed)


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds from a death to the next attempt.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--index", type=int, default=6, help="of the cluster, so that others are left alone")
    options = parser.parse_args()
    cluster = Cluster.up(nodes=2, index=options.index)
    try:
        Operator(cluster).install()
        jobs = Jobs(cluster, "recovery")
        jobs.create_namespace()
        storage = Storage(cluster)
        storage.claim(jobs.namespace, storage.seed())
        job = start(jobs, "mortal")
        for name, death in DEATHS.items():
            columns = zip(*(recovery(jobs, job, death) for _ in range(options.repeats)), strict=True)
            figures = (f"{statistics.median(each):.1f} ({min(each):.1f} to {max(each):.1f})" for each in columns)
            print(f"{name:22} created {next(figures)} s, ready {next(figures)} s, step {next(figures)} s", flush=True)
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
