"""How long planning takes and how large the Plan is: `python benchmarks/planner.py`.

Plans the full pipeline (PPO with KL, several mini-batches) for growing clusters, and prints seconds (median and slowest
of several runs, validation included), bytes of the Plan, and both as a ratio to one host.
"""

from __future__ import annotations

import argparse
import statistics
import time

from rljob_api.loading.load import parse_job
from rljob_api.planning.plan import Plan
from rljob_api.planning.planner import plan
from rljob_api.v1alpha1 import RLJob

JOB = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {{name: benchmark}}
spec:
  models: [{{name: actor, path: Qwen/Qwen3-0.6B}}]
  data: {{train: [{{path: train.parquet}}], batchSize: {prompts}, maxPromptTokens: 2048}}
  rewards: [{{name: correct, run: "rljob_worker.rewards:math_answer", column: answer}}]
  algorithm: {{name: PPO, groupSize: 8}}
  workerGroups:
    - {{name: train, replicas: {hosts}, accelerator: {{profile: nvidia-h100, count: 8}}}}
    - {{name: rollout, replicas: {hosts}, accelerator: {{profile: nvidia-h100, count: 8}}}}
  training: {{miniBatchRows: {prompts}}}
  dataBuffer: {{memory: 64Gi}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 32, 1024])
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    print(
        f"{'hosts x 8':>10} {'median s':>10} {'slowest s':>10} {'Plan bytes':>11} {'time ratio':>11} {'size ratio':>11}"
    )
    first: tuple[float, int] | None = None
    for hosts in options.hosts:
        job = parse_job(JOB.format(hosts=hosts, prompts=hosts * 8))
        seconds, size = [], 0
        for _ in range(options.runs):
            spent, made = timed(job)
            seconds.append(spent)
            size = len(made.canonical_json())
        median = statistics.median(seconds)
        first = first or (median, size)
        ratios = f"{median / first[0]:>11.2f} {size / first[1]:>11.3f}"
        print(f"{hosts:>10} {median:>10.4f} {max(seconds):>10.4f} {size:>11} {ratios}")


def timed(job: RLJob) -> tuple[float, Plan]:
    """Seconds that one planning takes, and the plan."""
    started = time.perf_counter()
    made = plan(job)
    return time.perf_counter() - started, made


if __name__ == "__main__":
    main()
