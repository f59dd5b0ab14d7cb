"""What the Workload of a job asks of Kueue."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.planning.plan import GroupPlan
from rljob_api.vocabulary import keys
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.pods import pod
from rljob_operator.manifests.topology import label_key

GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""Newest first."""
QUEUE_LABEL = f"{GROUP}/queue-name"
PRIORITY_LABEL = f"{GROUP}/priority-class"
JOB_UID_LABEL = f"{GROUP}/job-uid"


@dataclass(frozen=True)
class QueuePriority:
    """A priority class with its value, which Kueue wants to be told."""

    kind: str
    """`PriorityClass`, or Kueue's own `WorkloadPriorityClass`."""
    name: str
    value: int


def is_queued(context: JobContext) -> bool:
    """Whether the job asks for Kueue: by its label, as every other kind of job does, or by name."""
    return QUEUE_LABEL in context.job.metadata.labels or context.spec.scheduling.provider == "Kueue"


def queue_of(context: JobContext) -> str | None:
    """The LocalQueue: the job's label, as for every other kind of job, or `scheduling.queue`."""
    return context.job.metadata.labels.get(QUEUE_LABEL) or context.spec.scheduling.queue


def pod_set(context: JobContext, group: GroupPlan) -> Manifest:
    """A worker group as Kueue counts it: the template is the same for every host and attempt."""
    rendered = pod(context, group, 0, 1)
    spec = {name: value for name, value in rendered["spec"].items() if name not in ("hostname", "subdomain")}
    labels = {
        name: value
        for name, value in rendered["metadata"]["labels"].items()
        if name not in (keys.LABEL_ATTEMPT, keys.LABEL_HOST_INDEX)
    }
    found: Manifest = {
        "name": group.name,
        "count": group.replicas,
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }
    topology = context.group(group.name).topology
    if topology is not None and (topology.required or topology.preferred):
        kind, key = ("required", topology.required) if topology.required else ("preferred", topology.preferred)
        found["topologyRequest"] = {kind: label_key(context, str(key)), "podIndexLabel": keys.LABEL_HOST_INDEX}
    return found


def priority_fields(priority: QueuePriority, api_version: str) -> Manifest:
    """How a Workload names its priority class, which is where the versions differ."""
    group = GROUP if priority.kind == "WorkloadPriorityClass" else "scheduling.k8s.io"
    if api_version.endswith("/v1beta1"):
        source = f"{group}/{priority.kind.lower()}"
        return {"priorityClassName": priority.name, "priorityClassSource": source, "priority": priority.value}
    reference = {"group": group, "kind": priority.kind, "name": priority.name}
    return {"priorityClassRef": reference, "priority": priority.value}
