"""What the workers report, and what of it has been merged below a host."""

from __future__ import annotations

import random

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import Plan
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.job_tree import JobTree
from rljob_worker.databuffer.tests.gang import group, plan_of, stage
from rljob_worker.metrics.report import StepReport, merge_reports, report_to_bytes
from rljob_worker.metrics.scalars import maximum, mean, total

WORKERS_PER_HOST = 8
NUM_METRICS, NUM_SAMPLES, SAMPLE_CHARACTERS = 60, 2, 400


def report_of(ordinal: int) -> StepReport:
    """Seeded; sums that no two workers share."""
    rng = random.Random(ordinal)
    names = [f"part_{i // 10}/figure_{i}" for i in range(NUM_METRICS - 3)]
    kinds = (lambda: mean(rng.gauss(0, 1), 1 + rng.randrange(64)), lambda: total(rng.random() * 1e9))
    metrics = {name: kinds[i % 2]() if i % 10 else maximum(rng.random()) for i, name in enumerate(names)}
    metrics |= {"reward/mean": mean(rng.random(), 8), "tokens/total": total(rng.randrange(10**6))}
    metrics["time/step_seconds"] = mean(rng.random())
    text = "the answer is in the text " * (SAMPLE_CHARACTERS // 26)
    return StepReport(metrics, [{"prompt": text, "response": text, "reward": rng.random()} for _ in range(NUM_SAMPLES)])


def plan_for(num_hosts: int) -> Plan:
    schedule = [stage("a", "train", Mesh(dp=num_hosts * WORKERS_PER_HOST))]
    plan = plan_of([group("train", num_hosts, WORKERS_PER_HOST, ["a"])], schedule, {}, deadline_seconds=600.0)
    endless = plan.spec.stop.model_copy(update={"steps": 10**9})
    return plan.model_copy(update={"spec": plan.spec.model_copy(update={"stop": endless})})


def payload_below(shape: JobTree, host: Host) -> bytes:
    """Reports of a host and all below it, merged as they would be on their way."""
    first = shape.position(host) * WORKERS_PER_HOST
    own = [report_to_bytes(report_of(ordinal), ordinal) for ordinal in range(first, first + WORKERS_PER_HOST)]
    return merge_reports(own + [payload_below(shape, child) for child in shape.children(host)])
