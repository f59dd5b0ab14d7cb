"""The operator beside many jobs that wait, that do not answer, or that have ended, on a real API server.

    python benchmarks/operator_loads.py queued [--jobs 1000]    requests per second while all wait for Kueue
    python benchmarks/operator_loads.py silent [--jobs 300]     how much later the next attempt of another job starts
    python benchmarks/operator_loads.py ended  [--jobs 5000]    from the start of the operator to what it does first

Needs what `make e2e` needs, but no node that runs containers.  The operator is a process of this machine with its
default limits, except that jobs queue up without one.

`queued`: the cluster has Kueue's Workloads and no Kueue, so nobody is ever let in; a minute is watched, in which what
is looked at now and then is looked at once.  `silent`: one pod a job, on nodes that kwok simulates, at whose addresses
nobody listens; another job's worker ends with 137, alone and then beside them.
`ended`: no pods are left of the ended jobs; a job that was submitted last and has no status yet is the one whose first
pod is waited for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from operator_process import OperatorProcess, grown, operator_process
from operator_scale import CRD, NAMESPACE, idle_cpu_percent, job, listed, mib, private, ready_jobs

from e2e.cluster import KubeCluster
from e2e.cluster.go_programs import module_folder
from e2e.cluster.nodes.kwok import DEVICES_PER_NODE
from e2e.cluster.waiting import wait_until
from rljob_operator.cluster.api import Object
from rljob_operator.cluster.client import ApiCluster
from rljob_operator.cluster.connection import ApiConnection
from rljob_operator.cluster.kinds import RLJOB
from rljob_operator.cluster.login import Login
from rljob_operator.cluster.rate_limit import RateLimit

WORKLOAD_CRD = "config/components/crd/bases/kueue.x-k8s.io_workloads.yaml"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
SUBMITTED_AT_ONCE = 16
UNLIMITED = {"requestsPerSecond": 1000, "burst": 1000}
TIMEOUT_SECONDS = 560
KILLED = 137
ENDED: Object = {
    "phase": "Succeeded",
    "attempt": 1,
    "observedGeneration": 1,
    "startTime": "2026-01-01T00:00:00Z",
    "completionTime": "2026-01-01T01:00:00Z",
    "activeSeconds": 3600,
    "conditions": [
        {
            "type": "Complete",
            "status": "True",
            "reason": "AllPodsDone",
            "message": "",
            "lastTransitionTime": "2026-01-01T01:00:00Z",
            "observedGeneration": 1,
        }
    ],
}
"""It is the condition that makes an end final."""


def small_job(name: str) -> Object:
    """A job of one pod with one device, so that a simulated node has eight of them."""
    result = job(name, 1)
    result["spec"]["workerGroups"][0]["accelerator"]["count"] = 1
    return result


def queued_job(name: str) -> Object:
    result = small_job(name)
    result["metadata"]["labels"] = {QUEUE_LABEL: "team"}
    return result


def submit(cluster: KubeCluster, jobs: Sequence[Object], status: Object | None = None) -> None:
    """All of them, and what they are said to be in already."""
    asyncio.run(_submit(cluster, jobs, status))


async def _submit(cluster: KubeCluster, jobs: Sequence[Object], status: Object | None) -> None:
    slots = asyncio.Semaphore(SUBMITTED_AT_ONCE)
    async with ApiConnection(Login(cluster.kubeconfig), lambda verb, code: None) as connection:
        api = ApiCluster(connection, RateLimit(None))

        async def one(body: Object) -> None:
            async with slots:
                await api.create(RLJOB, NAMESPACE, body)
                if status is not None:
                    about = {"name": body["metadata"]["name"]}
                    await api.apply_status(RLJOB, NAMESPACE, {"metadata": about, "status": status})

        await asyncio.gather(*map(one, jobs))


def queued(cluster: KubeCluster, folder: Path, num_jobs: int, seconds: float) -> None:
    """Requests of the operator, by verb, over some seconds in which nothing happens to the jobs."""
    cluster.kubectl("create", "-f", module_folder("kueue") / WORKLOAD_CRD)
    wait_until(lambda: "Workload" in cluster.kubectl("api-resources"), "the API server to serve Workloads", 60)
    with operator_process(cluster, folder, api=UNLIMITED) as operator:
        submit(cluster, [queued_job(f"queued-{number:04}") for number in range(num_jobs)])
        wait_until(
            lambda: counted(cluster, "workloads.kueue.x-k8s.io") == num_jobs, "the Workloads", TIMEOUT_SECONDS, 2
        )
        wait_until(
            lambda: operator.samples()["rljob_operator_queue_depth", ()] == 0,
            "a look at every job",
            TIMEOUT_SECONDS,
            1,
        )
        time.sleep(10)
        before, used = operator.samples(), operator.usage()
        time.sleep(seconds)
        after, usage = operator.samples(), operator.usage()
    result = requests(before, after)
    cpu = 100 * (usage.cpu_seconds - used.cpu_seconds) / seconds
    print(f"{num_jobs} jobs wait: {result.total() / seconds:.2f} requests/s over {seconds:.0f} s ({listed(result)})")
    print(f"  {cpu:.1f} % of a core, {mib(usage.resident_bytes):.0f} MiB resident, {private(usage)}", flush=True)


def requests(before: Any, after: Any) -> Counter[str]:
    counts: Counter[str] = Counter()
    for labels, count in grown(before, after, "rljob_operator_api_requests_total").items():
        counts[dict(labels)["verb"]] += int(count)
    return counts


def silent(cluster: KubeCluster, folder: Path, num_jobs: int, repeats: int) -> None:
    """Seconds until the next attempt's pod is there, without and with jobs whose leads do not answer."""
    with operator_process(cluster, folder) as operator:
        alone = [next_attempt(cluster, f"alone-{number}", number) for number in range(repeats)]
        cluster.kubectl("-n", NAMESPACE, "delete", "rljobs", "--all")
        submit(cluster, [small_job(f"silent-{number:03}") for number in range(num_jobs)])
        wait_until(lambda: ready_jobs(cluster) == num_jobs, "the silent jobs to run", TIMEOUT_SECONDS, 2)
        cpu = idle_cpu_percent(operator.usage)
        beside = [next_attempt(cluster, f"beside-{number}", num_jobs + number) for number in range(repeats)]
    for name, result in (("alone", alone), (f"beside {num_jobs} silent jobs", beside)):
        print(f"{name}: {statistics.median(result):.2f} s ({min(result):.2f} to {max(result):.2f}, {repeats} times)")
    later = statistics.median(beside) - statistics.median(alone)
    print(f"  {later:+.2f} s; {cpu:.1f} % of a core while they run", flush=True)


def next_attempt(cluster: KubeCluster, name: str, num_running: int) -> float:
    """Seconds from the end of the worker of a job of this name to the next attempt's pod."""
    submit(cluster, [small_job(name)])
    wait_until(lambda: ready_jobs(cluster) == num_running + 1, f"{name} to run", 120, 0.5)
    (pod,) = pods_of(cluster, name)
    ended = {"terminated": {"exitCode": KILLED, "reason": "Error"}}
    workers = [{**item, "ready": False, "state": ended} for item in pod["status"]["containerStatuses"]]
    patch = json.dumps({"status": {"phase": "Failed", "containerStatuses": workers}})
    cluster.kubectl(
        "-n", NAMESPACE, "patch", "pod", pod["metadata"]["name"], "--subresource=status", "--type=merge", "-p", patch
    )
    began = time.monotonic()
    wait_until(lambda: is_second(pods_of(cluster, name)), f"attempt 2 of {name}", 120, 0.05)
    seconds = time.monotonic() - began
    wait_until(lambda: ready_jobs(cluster) == num_running + 1, f"{name} to run again", 120, 0.5)
    return seconds


def pods_of(cluster: KubeCluster, name: str) -> list[Object]:
    words = ("-n", NAMESPACE, "get", "pods", "-l", f"rljob.dev/job={name}", "-o", "json")
    result: list[Object] = json.loads(cluster.kubectl(*words))["items"]
    return result


def is_second(pods: Sequence[Object]) -> bool:
    return any(pod["metadata"]["labels"]["rljob.dev/attempt"] == "2" for pod in pods)


def ended(cluster: KubeCluster, folder: Path, num_jobs: int) -> None:
    """Seconds from the start of the process to its first decision on the job that lives, and its memory."""
    submit(cluster, [small_job(f"ended-{number:04}") for number in range(num_jobs)], ENDED)
    submit(cluster, [small_job("zz-living")])
    began = time.monotonic()
    with operator_process(cluster, folder) as operator:
        ready = spent(operator, began)
        wait_until(lambda: pods_of(cluster, "zz-living"), "the living job's pod", TIMEOUT_SECONDS)
        decided = spent(operator, began)
        print(f"{num_jobs} ended jobs: ready {ready}, first pod of the living one {decided} after the start")
        sys.stdout.flush()
        wait_until(lambda: num_looks(operator) > num_jobs, "a look at every ended job", TIMEOUT_SECONDS, 1)
        looked = spent(operator, began)
        started = time.monotonic()
        operator.samples()
        scraped = time.monotonic() - started
        usage = operator.usage()
    print(f"  all looked at after {looked}; a scrape takes {scraped:.2f} s")
    print(f"  {mib(usage.resident_bytes):.0f} MiB resident, {private(usage)}", flush=True)


def spent(operator: OperatorProcess, began: float) -> str:
    """Time since then, and what of it was work of the operator's, which other work on the machine does not lengthen."""
    return f"{time.monotonic() - began:.1f} s ({operator.usage().cpu_seconds:.1f} s of CPU)"


def num_looks(operator: OperatorProcess) -> float:
    counts = grown({}, operator.samples(), "rljob_operator_reconcile_seconds_count")
    return sum(counts.values())


def counted(cluster: KubeCluster, resource: str) -> int:
    return len(cluster.kubectl("-n", NAMESPACE, "get", resource, "--no-headers", "-o", "name").splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("load", choices=("queued", "silent", "ended"))
    parser.add_argument("--jobs", type=int, default=0, help="1000 queued, 300 silent, 5000 ended")
    parser.add_argument("--seconds", type=float, default=60.0, help="of watching jobs that wait")
    parser.add_argument("--repeats", type=int, default=5, help="failures, alone and beside silent jobs")
    parser.add_argument("--index", type=int, default=5, help="which of this machine's clusters to start")
    options = parser.parse_args()
    loads: dict[str, tuple[int, Callable[[KubeCluster, Path, int], None]]] = {
        "queued": (1000, lambda cluster, folder, num: queued(cluster, folder, num, options.seconds)),
        "silent": (300, lambda cluster, folder, num: silent(cluster, folder, num, options.repeats)),
        "ended": (5000, ended),
    }
    default, run = loads[options.load]
    num_jobs = options.jobs or default
    num_nodes = -(-(num_jobs + options.repeats) // DEVICES_PER_NODE) if options.load == "silent" else 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster goes down on the way out
    cluster = KubeCluster.up(nodes=0, kwok=num_nodes, index=options.index, build_images=False)
    try:
        cluster.kubectl("create", "-f", CRD)
        wait_until(lambda: "RLJob" in cluster.kubectl("api-resources"), "the API server to serve RLJobs", 60)
        with tempfile.TemporaryDirectory() as folder:
            run(cluster, Path(folder), num_jobs)
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
