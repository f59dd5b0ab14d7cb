"""Volcano: a PodGroup of `scheduling.volcano.sh/v1beta1`, and pods that name it in an annotation."""

from __future__ import annotations

from rljob_api.vocabulary import keys
from rljob_operator import names
from rljob_operator.gangs.pod_groups import attempt_of, pod_group, total_requests
from rljob_operator.gangs.ungrouped import Ungrouped
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.pod.pods import vendor_annotations

API_VERSION = "scheduling.volcano.sh/v1beta1"
GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
TASK_ANNOTATION = "volcano.sh/task-spec"


class Volcano(Ungrouped):
    """Nothing starts before every pod has a node."""

    provider = "Volcano"
    api_versions = (API_VERSION,)
    counts_services = False

    def objects(self, context: JobContext, attempt: int) -> list[Manifest]:
        scheduling = context.spec.scheduling
        spec: Manifest = {
            "minMember": context.num_pods,
            "minTaskMember": {group.name: group.replicas for group in context.plan.groups},
            "minResources": total_requests(context),
        }
        if scheduling.queue is not None:
            spec["queue"] = scheduling.queue
        if scheduling.priority_class_name is not None:
            spec["priorityClassName"] = scheduling.priority_class_name
        found = pod_group(context, attempt, API_VERSION, spec)
        # vendors' plugins read their labels and annotations from the group as well
        for group in context.plan.groups:
            profile = context.profile(group)
            found["metadata"]["labels"] |= profile.labels
            found["metadata"].setdefault("annotations", {}).update(vendor_annotations(profile, context.num_pods))
        return [found]

    def shape(self, context: JobContext, pod: Manifest) -> Manifest:
        labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        annotations[GROUP_ANNOTATION] = names.pod_group_name(context.name, attempt_of(pod))
        annotations[TASK_ANNOTATION] = labels[keys.LABEL_GROUP]
        pod["spec"]["schedulerName"] = context.pods.gang.volcano_scheduler
        return pod
