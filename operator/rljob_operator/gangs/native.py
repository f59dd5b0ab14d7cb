"""Kubernetes' own pod groups: `scheduling.k8s.io/v1beta1`, of Kubernetes 1.37, behind a setting."""

from __future__ import annotations

from rljob_operator import names
from rljob_operator.gangs.pod_groups import attempt_of, pod_group
from rljob_operator.gangs.ungrouped import Ungrouped
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.pod.topology import label_key

API_VERSION = "scheduling.k8s.io/v1beta1"


class Native(Ungrouped):
    """The default scheduler places all pods of the group or none."""

    provider = "Native"
    api_versions = (API_VERSION,)
    counts_services = False

    def objects(self, context: JobContext, attempt: int) -> list[Manifest]:
        spec: Manifest = {"schedulingPolicy": {"gang": {"minCount": context.num_pods}}}
        priority = context.spec.scheduling.priority_class_name
        if priority is not None:
            spec["priorityClassName"] = priority
        required = self._required_topology(context)
        if required is not None:
            spec["schedulingConstraints"] = {"topology": [{"key": required}]}
        return [pod_group(context, attempt, API_VERSION, spec)]

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
