"""Schedulers that get the pods of an attempt as a PodGroup: Volcano, the coscheduling plugin, Kubernetes itself."""

from __future__ import annotations

from decimal import Decimal

from rljob_api.vocabulary import keys
from rljob_api.vocabulary.quantity import amount
from rljob_operator import names
from rljob_operator.gangs.provider import Ungrouped
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.metadata import metadata
from rljob_operator.manifests.pod.pods import pod, vendor_annotations
from rljob_operator.manifests.pod.topology import label_key

VOLCANO_VERSION = "scheduling.volcano.sh/v1beta1"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_TASK = "volcano.sh/task-spec"
"""Annotations of a pod."""

COSCHEDULING_VERSION = "scheduling.x-k8s.io/v1alpha1"
COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"
"""A label of a pod."""

NATIVE_VERSION = "scheduling.k8s.io/v1beta1"
"""API version of a PodGroup in Kubernetes 1.37."""


class Volcano(Ungrouped):
    """Nothing starts before every pod has a node."""

    provider = "Volcano"
    api_versions = (VOLCANO_VERSION,)
    counts_services = False

    def objects(self, context: JobContext, attempt: int) -> list[Manifest]:
        scheduling = context.spec.scheduling
        spec: Manifest = {
            "minMember": context.num_pods,
            "minTaskMember": {group.name: group.replicas for group in context.plan.gang},
            "minResources": total_requests(context),
        }
        if scheduling.queue is not None:
            spec["queue"] = scheduling.queue
        if scheduling.priority_class_name is not None:
            spec["priorityClassName"] = scheduling.priority_class_name
        result = pod_group(context, attempt, VOLCANO_VERSION, spec)
        # vendors' plugins read their labels and annotations from the group as well
        for group in context.plan.gang:
            profile = context.profile(group)
            result["metadata"]["labels"] |= profile.labels
            result["metadata"].setdefault("annotations", {}).update(vendor_annotations(profile, context.num_pods))
        return [result]

    def shape(self, context: JobContext, pod: Manifest) -> Manifest:
        labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        annotations[VOLCANO_GROUP] = names.pod_group_name(context.name, attempt_of(pod))
        annotations[VOLCANO_TASK] = labels[keys.LABEL_GROUP]
        return self.shape_guest(context, pod)

    def shape_guest(self, context: JobContext, pod: Manifest) -> Manifest:
        pod["spec"]["schedulerName"] = context.pods.gang.volcano_scheduler
        return pod


class Coscheduling(Ungrouped):
    """Pods with a node wait for the others, at most `scheduling.timeoutSeconds`, and then give it back."""

    provider = "Coscheduling"
    api_versions = (COSCHEDULING_VERSION,)
    counts_services = False

    def objects(self, context: JobContext, attempt: int) -> list[Manifest]:
        spec = {
            "minMember": context.num_pods,
            "minResources": total_requests(context),
            "scheduleTimeoutSeconds": context.spec.scheduling.timeout_seconds,
        }
        return [pod_group(context, attempt, COSCHEDULING_VERSION, spec)]

    def shape(self, context: JobContext, pod: Manifest) -> Manifest:
        pod["metadata"]["labels"][COSCHEDULING_GROUP] = names.pod_group_name(context.name, attempt_of(pod))
        pod["spec"]["schedulerName"] = context.pods.gang.coscheduling_scheduler
        return pod


class Native(Ungrouped):
    """The default scheduler places all pods of the group or none; behind a setting."""

    provider = "Native"
    api_versions = (NATIVE_VERSION,)
    counts_services = False

    def objects(self, context: JobContext, attempt: int) -> list[Manifest]:
        spec: Manifest = {"schedulingPolicy": {"gang": {"minCount": context.num_pods}}}
        priority = context.spec.scheduling.priority_class_name
        if priority is not None:
            spec["priorityClassName"] = priority
        required = self._required_topology(context)
        if required is not None:
            spec["schedulingConstraints"] = {"topology": [{"key": required}]}
        return [pod_group(context, attempt, NATIVE_VERSION, spec)]

    def shape(self, context: JobContext, pod: Manifest) -> Manifest:
        name = names.pod_group_name(context.name, attempt_of(pod))
        pod["spec"]["schedulingGroup"] = {"podGroupName": name}
        return pod

    @staticmethod
    def _required_topology(context: JobContext) -> str | None:
        """A group takes one key, so only what all worker groups demand alike goes there; their affinity says the
        rest."""
        topologies = [group.topology for group in context.spec.worker_groups]
        demanded = {topology.required if topology else None for topology in topologies}
        (key,) = demanded if len(demanded) == 1 else (None,)
        return None if key is None else label_key(context, key)


def pod_group(context: JobContext, attempt: int, api_version: str, spec: Manifest) -> Manifest:
    """A PodGroup of an attempt: its pods are other pods than those of the attempt before."""
    name = names.pod_group_name(context.name, attempt)
    labels = {keys.LABEL_ATTEMPT: str(attempt)}
    return {
        "apiVersion": api_version,
        "kind": "PodGroup",
        "metadata": metadata(context, name, "pod-group", labels),
        "spec": spec,
    }


def attempt_of(manifest: Manifest) -> int:
    """The attempt that a child belongs to."""
    return int(manifest["metadata"]["labels"][keys.LABEL_ATTEMPT])


def total_requests(context: JobContext) -> dict[str, str]:
    """What all pods of the job ask for together, sidecars included."""
    totals: dict[str, Decimal] = {}
    for group in context.plan.gang:
        spec = pod(context, group, 0, 1)["spec"]
        sidecars = (item for item in spec.get("initContainers", ()) if item.get("restartPolicy") == "Always")
        for container in (*sidecars, *spec["containers"]):
            resources = container.get("resources", {})
            for name, quantity in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
                totals[name] = totals.get(name, Decimal(0)) + group.replicas * amount(quantity)
    return {name: _written(total) for name, total in sorted(totals.items())}


def _written(total: Decimal) -> str:
    """A whole number, or thousandths."""
    return str(int(total)) if total == total.to_integral_value() else f"{int(total * 1000)}m"
