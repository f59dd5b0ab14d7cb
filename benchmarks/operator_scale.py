"""The operator with many pods and with many jobs, on a real API server whose nodes kwok simulates.

    python benchmarks/operator_scale.py [--nodes 1024] [--jobs 200] [--index 7]

Needs what `make e2e` needs. The operator is a process of this machine with its default client limits (50 requests per
second, bursts of 100). Measured: one job with a pod on every node, then many jobs of 4 pods; from the submission to the
last pod created, and to every pod Ready and the operator's having said so. Requests are counted by the operator itself
and, those that change something, by the API server. A resident page may be shared; private memory is what goes when the
operator ends. Everything shares this machine's processors: the API server, the scheduler and kwok, which is why Ready
takes longer than created.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from operator_process import OperatorProcess, Samples, Usage, grown, operator_process, parse

from e2e.cluster import KubeCluster
from e2e.cluster.commands import CommandFailed
from e2e.cluster.nodes.kwok import ANNOTATION, DEVICES_PER_NODE
from e2e.cluster.waiting import wait_until

CRD = Path(__file__).parents[1] / "crds/rljobs.rljob.dev.yaml"
NAMESPACE = "default"
PODS_PER_SMALL_JOB = 4
IDLE_SECONDS = 30.0
NUM_USERS = 4
CHANGES = ("POST", "PUT", "PATCH", "DELETE")


def job(name: str, replicas: int) -> dict[str, Any]:
    """A job that fills its nodes; its pods tolerate the taint of simulated ones."""
    tolerations = [{"key": ANNOTATION, "operator": "Exists"}]
    group = {
        "name": "train",
        "replicas": replicas,
        "accelerator": {"profile": "nvidia-h100", "count": DEVICES_PER_NODE},
        "template": {"spec": {"tolerations": tolerations, "nodeSelector": {"type": "kwok"}}},
    }
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "models": [{"name": "actor", "path": "Qwen/Qwen3-0.6B"}],
            "data": {"train": [{"path": "train.parquet"}], "batchSize": replicas * DEVICES_PER_NODE},
            "rewards": [{"name": "correct", "run": "rljob_worker.rewards:math_answer", "column": "answer"}],
            "algorithm": {"name": "GRPO", "groupSize": 8},
            "workerGroups": [group],
            "dataBuffer": {"memory": "1Gi"},
            "lifecycle": {"pendingSeconds": 7200, "stallSeconds": 7200},
        },
    }


@dataclass(frozen=True)
class ScalePhase:
    """One load: times from its submission, and what it took."""

    name: str
    num_pods: int
    submit_seconds: float
    created_seconds: float
    ready_seconds: float
    before: Samples
    after: Samples
    server_before: Samples
    server_after: Samples
    usage: Usage


def measure(
    cluster: KubeCluster, operator: OperatorProcess, name: str, jobs: list[dict[str, Any]], num_pods: int
) -> ScalePhase:
    """Submits the jobs and waits until every pod runs and every job says so."""
    before, server_before = operator.samples(), server_samples(cluster)
    started = time.monotonic()
    submit(cluster, jobs)
    submitted = time.monotonic()
    wait_until(lambda: pods_counted(cluster) >= num_pods, f"{num_pods} pods", 600, interval_seconds=0.5)
    created = time.monotonic()
    wait_until(lambda: ready_jobs(cluster) == len(jobs), f"{len(jobs)} Ready jobs", 900, 2.0)
    ready = time.monotonic()
    return ScalePhase(
        name,
        num_pods,
        submitted - started,
        created - started,
        ready - started,
        before,
        operator.samples(),
        server_before,
        server_samples(cluster),
        operator.usage(),
    )


def submit(cluster: KubeCluster, jobs: list[dict[str, Any]]) -> None:
    """As several users would: one kubectl sends one object after the other."""
    shares = [share for start in range(NUM_USERS) if (share := jobs[start::NUM_USERS])]
    lists = [json.dumps({"apiVersion": "v1", "kind": "List", "items": share}) for share in shares]
    with ThreadPoolExecutor(NUM_USERS) as pool:
        list(pool.map(lambda text: cluster.kubectl("create", "-f", "-", input=text), lists))


def pods_counted(cluster: KubeCluster) -> int:
    """One pod is read; the server says how many are left."""
    page = json.loads(cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods?limit=1"))
    num_left: int = page["metadata"].get("remainingItemCount", 0)
    return len(page["items"]) + num_left


def serves_jobs(cluster: KubeCluster) -> bool:
    with suppress(CommandFailed):
        cluster.kubectl("get", "--raw", f"/apis/rljob.dev/v1alpha1/namespaces/{NAMESPACE}/rljobs")
        return True
    return False


def ready_jobs(cluster: KubeCluster) -> int:
    """By the phase in the table that the server prints."""
    rows = cluster.kubectl("-n", NAMESPACE, "get", "rljobs", "--no-headers").splitlines()
    return sum(row.split()[1] == "Running" for row in rows)


def server_samples(cluster: KubeCluster) -> Samples:
    lines = cluster.kubectl("get", "--raw", "/metrics").splitlines()
    return parse("\n".join(line for line in lines if line.startswith("apiserver_request_total")) + "\n")


def delete_all(cluster: KubeCluster) -> float:
    """Seconds until no pod is left."""
    started = time.monotonic()
    cluster.kubectl("-n", NAMESPACE, "delete", "rljobs", "--all", "--wait=false")
    wait_until(lambda: pods_counted(cluster) == 0, "the pods to go", 900, interval_seconds=1.0)
    return time.monotonic() - started


def idle_cpu_percent(usage: Callable[[], Usage]) -> float:
    """CPU use as a percentage of one core, over half a minute in which nothing happens."""
    time.sleep(5)
    before = usage().cpu_seconds
    time.sleep(IDLE_SECONDS)
    return 100 * (usage().cpu_seconds - before) / IDLE_SECONDS


def print_phase(phase: ScalePhase) -> None:
    seconds = grown(phase.before, phase.after, "rljob_operator_reconcile_seconds_sum")
    counts = grown(phase.before, phase.after, "rljob_operator_reconcile_seconds_count")
    num_reconciles = sum(counts.values())
    mean = sum(seconds.values()) / max(num_reconciles, 1)
    print(f"\n{phase.name}")
    rate = phase.num_pods / phase.created_seconds
    print(f"  submitted           {phase.submit_seconds:8.1f} s")
    print(f"  all pods created    {phase.created_seconds:8.1f} s   {rate:.0f} per second")
    print(f"  all jobs Ready      {phase.ready_seconds:8.1f} s")
    print(f"  reconciles          {num_reconciles:8.0f}     mean {mean * 1000:.0f} ms, 99 % in {quantile(phase, 0.99)}")
    print(f"  operator memory     {mib(phase.usage.resident_bytes):8.1f} MiB resident, {private(phase.usage)}")
    print(f"  operator's requests {requests(phase)}")
    print(f"  API server's writes {writes(phase)}")


def quantile(phase: ScalePhase, share: float) -> str:
    """The upper bound of the histogram's bucket that holds this share of the reconciles."""
    totals: Counter[float] = Counter()
    for labels, count in grown(phase.before, phase.after, "rljob_operator_reconcile_seconds_bucket").items():
        totals[float(dict(labels)["le"])] += int(count)
    wanted = share * max(totals.values(), default=0)
    return f"{min((bound for bound, count in totals.items() if count >= wanted), default=0.0):g} s"


def requests(phase: ScalePhase) -> str:
    by_verb: Counter[str] = Counter()
    for labels, count in grown(phase.before, phase.after, "rljob_operator_api_requests_total").items():
        by_verb[dict(labels)["verb"]] += int(count)
    return f"{by_verb.total():8}     {listed(by_verb)}"


def writes(phase: ScalePhase) -> str:
    """From everyone: also the scheduler, the controllers and kwok."""
    by_kind: Counter[str] = Counter()
    for labels, count in grown(phase.server_before, phase.server_after, "apiserver_request_total").items():
        said = dict(labels)
        if said["verb"] in CHANGES:
            resource = "/".join(part for part in (said["resource"], said.get("subresource")) if part)
            by_kind[f"{said['verb']} {resource}"] += int(count)
    return f"{by_kind.total():8}     {listed(by_kind)}"


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common(10))


def mib(num_bytes: int) -> float:
    return num_bytes / 2**20


def private(usage: Usage) -> str:
    return f"{mib(usage.private_bytes):.1f} private, {mib(usage.peak_resident_bytes):.1f} at most"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--index", type=int, default=7, help="which of this machine's clusters to start")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster goes down on the way out
    started = time.monotonic()
    cluster = KubeCluster.up(nodes=0, kwok=options.nodes, index=options.index, build_images=False)
    print(f"{options.nodes} nodes Ready     {time.monotonic() - started:8.1f} s", flush=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(cluster, Path(folder), options.nodes, options.jobs)
    finally:
        cluster.down()


def run(cluster: KubeCluster, folder: Path, num_nodes: int, num_jobs: int) -> None:
    cluster.kubectl("create", "-f", CRD)
    wait_until(lambda: serves_jobs(cluster), "the API server to serve RLJobs", timeout_seconds=60)
    with operator_process(cluster, folder) as operator:
        print(f"idle, no job          {idle_cpu_percent(operator.usage):8.2f} % of a core", flush=True)
        print_phase(measure(cluster, operator, f"one job of {num_nodes} pods", [job("large", num_nodes)], num_nodes))
        print(f"  idle while it runs  {idle_cpu_percent(operator.usage):8.2f} % of a core")
        print(f"  deleted             {delete_all(cluster):8.1f} s", flush=True)
        small = [job(f"small-{number:03}", PODS_PER_SMALL_JOB) for number in range(num_jobs)]
        num_pods = num_jobs * PODS_PER_SMALL_JOB
        print_phase(measure(cluster, operator, f"{num_jobs} jobs of {PODS_PER_SMALL_JOB} pods", small, num_pods))
        print(f"  idle while they run {idle_cpu_percent(operator.usage):8.2f} % of a core")
        print(f"  deleted             {delete_all(cluster):8.1f} s")


if __name__ == "__main__":
    main()
