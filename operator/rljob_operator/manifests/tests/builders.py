"""Jobs and contexts for tests of children."""

from __future__ import annotations

import json

from rljob_api.catalogue.profiles import DEFAULT, profiles_from
from rljob_api.loading.load import parse_job
from rljob_api.planning.planner import plan
from rljob_api.tests.builders import SMALL
from rljob_operator.manifests.context import JobContext, WrittenPlan
from rljob_operator.manifests.settings import PodSettings

UID = "6f1c2a34-0000-4000-8000-000000000001"
TWO_GROUPS = "workerGroups=[{name: train, replicas: 2}, {name: rollout, replicas: 4}]"


def make_context(*overrides, settings=None, profiles=None, labels=None):
    """The small job with `--set` overrides, as the operator sees it in namespace `team`."""
    known = profiles_from(profiles or {})
    job = parse_job(SMALL, overrides, known)
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"labels": labels or {}})})
    return JobContext(
        job, UID, "team", WrittenPlan.of(plan(job, known)), known, PodSettings.model_validate(settings or {})
    )


def one_group(profile="cpu", count=1, replicas=1, **fields):
    """An override with a single worker group."""
    group = {"name": "train", "replicas": replicas, "accelerator": {"profile": profile, "count": count}, **fields}
    return f"workerGroups={json.dumps([group])}"


def vendor_context(profile):
    """Two hosts of a vendor, with what a real job has besides."""
    count = min(8, max(DEFAULT[profile].counts, default=8))
    fields = {"topology": {"preferred": "topology.kubernetes.io/zone"}}
    batch = 2 * count
    return make_context(
        f"data.batchSize={batch}",
        one_group(profile, count, 2, **fields),
        "storage={persistentVolumeClaim: team-a}",
        "podSecurity=Privileged",
    )


def named(entries, name):
    """The entry of this name."""
    return next(entry for entry in entries if entry["name"] == name)


def worker_of(pod):
    return named(pod["spec"]["containers"], "worker")


def buffer_of(pod):
    return named(pod["spec"]["initContainers"], "data-buffer")


def env_of(container):
    """Plain variables by name."""
    return {item["name"]: item.get("value") for item in container["env"]}
