"""What the Workload of a job asks of Kueue.

Field names are those of `kueue.x-k8s.io` v1beta2 and v1beta1, which differ only in how a priority class is named.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.planning.plan import GroupPlan
from rljob_api.vocabulary import keys
from rljob_operator import names
from rljob_operator.gangs.kueue.conditions import holds_in
from rljob_operator.manifests.agents import POD_SET as AGENTS_POD_SET
from rljob_operator.manifests.agents import agents_pod
from rljob_operator.manifests.context import JobContext, Manifest, queue_of
from rljob_operator.manifests.metadata import metadata
from rljob_operator.manifests.pod.pods import pod
from rljob_operator.manifests.pod.topology import label_key
from rljob_operator.manifests.serving.kinds import kinds_of_pods

GROUP = "kueue.x-k8s.io"
API_VERSIONS = (f"{GROUP}/v1beta2", f"{GROUP}/v1beta1")
"""Newest first."""
PRIORITY_LABEL = f"{GROUP}/priority-class"
JOB_UID_LABEL = f"{GROUP}/job-uid"
_PRIORITY_FIELDS = ("priority", "priorityClassName", "priorityClassSource", "priorityClassRef")


@dataclass(frozen=True)
class QueuePriority:
    """A priority class with its value, which a Workload has to name."""

    kind: str
    """`PriorityClass`, or Kueue's own `WorkloadPriorityClass`."""
    name: str
    value: int


def workload(context: JobContext, api_version: str, priority: QueuePriority | None) -> Manifest:
    """It follows the job and not its attempts: quota is held while the gang restarts."""
    kinds = (kind for service in context.spec.services for kind in kinds_of_pods(context, service))
    services = (_pod_set(kind.pod_set, kind.count, kind.pod) for kind in kinds)
    pod_sets = [*(pod_set(context, group) for group in context.plan.gang), *services]
    if (agents := context.spec.agent_group) is not None:
        pod_sets.append(_pod_set(AGENTS_POD_SET, agents.replicas, agents_pod(context, agents, 1)))
    spec: Manifest = {"podSets": pod_sets}
    queue = queue_of(context)
    if queue is not None:
        spec["queueName"] = queue
    if priority is not None:
        spec |= priority_fields(priority, api_version)
    labels = {JOB_UID_LABEL: context.uid}
    return {
        "apiVersion": api_version,
        "kind": "Workload",
        "metadata": metadata(context, names.workload_name(context.name), "workload", labels),
        "spec": spec,
    }


def renewal(live: Manifest, wanted: Manifest) -> Manifest | None:
    """What to apply over a live Workload: its priority at any time, its queue until there is quota.  None: nothing."""
    if holds_in(live, "Finished"):
        return None
    fields = _PRIORITY_FIELDS if "admission" in live.get("status", {}) else (*_PRIORITY_FIELDS, "queueName")
    changed = {name: wanted["spec"][name] for name in fields if name in wanted["spec"]}
    if all(live.get("spec", {}).get(name) == value for name, value in changed.items()):
        return None
    about = {name: live["metadata"][name] for name in ("name", "namespace")}
    return {"apiVersion": wanted["apiVersion"], "kind": "Workload", "metadata": about, "spec": changed}


def pod_set(context: JobContext, group: GroupPlan) -> Manifest:
    """A worker group as Kueue counts it: the template is the same for every host and attempt."""
    result = _pod_set(group.name, group.replicas, pod(context, group, 0, 1))
    topology = context.group(group.name).topology
    if topology is not None and (topology.required or topology.preferred):
        kind, key = ("required", topology.required) if topology.required else ("preferred", topology.preferred)
        result["topologyRequest"] = {kind: label_key(context, str(key)), "podIndexLabel": keys.LABEL_HOST_INDEX}
    return result


def _pod_set(name: str, count: int, rendered: Manifest) -> Manifest:
    spec = {field: value for field, value in rendered["spec"].items() if field not in ("hostname", "subdomain")}
    labels = {
        label: value
        for label, value in rendered["metadata"]["labels"].items()
        if label not in (keys.LABEL_ATTEMPT, keys.LABEL_HOST_INDEX)
    }
    return {"name": name, "count": count, "template": {"metadata": {"labels": labels}, "spec": spec}}


def priority_fields(priority: QueuePriority, api_version: str) -> Manifest:
    """How a Workload names its priority class, which is where the versions differ."""
    group = GROUP if priority.kind == "WorkloadPriorityClass" else "scheduling.k8s.io"
    if api_version.endswith("/v1beta1"):
        source = f"{group}/{priority.kind.lower()}"
        return {"priorityClassName": priority.name, "priorityClassSource": source, "priority": priority.value}
    reference = {"group": group, "kind": priority.kind, "name": priority.name}
    return {"priorityClassRef": reference, "priority": priority.value}
