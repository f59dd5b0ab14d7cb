"""The coscheduling plugin: a PodGroup of `scheduling.x-k8s.io/v1alpha1`, and pods that name it in a label."""

from __future__ import annotations

from rljob_operator import names
from rljob_operator.gangs.pod_groups import attempt_of, pod_group, total_requests
from rljob_operator.gangs.ungrouped import Ungrouped
from rljob_operator.manifests.context import JobContext, Manifest

API_VERSION = "scheduling.x-k8s.io/v1alpha1"
GROUP_LABEL = "scheduling.x-k8s.io/pod-group"


class Coscheduling(Ungrouped):
    """Pods with a node wait for the others, at most `scheduling.timeoutSeconds`, and then give it back."""

    provider = "Coscheduling"
    api_versions = (API_VERSION,)
    counts_services = False

    def objects(self, context: JobContext, attempt: int) -> list[Manifest]:
        spec = {
            "minMember": context.num_pods,
            "minResources": total_requests(context),
            "scheduleTimeoutSeconds": context.spec.scheduling.timeout_seconds,
        }
        return [pod_group(context, attempt, API_VERSION, spec)]

    def shape(self, context: JobContext, pod: Manifest) -> Manifest:
        pod["metadata"]["labels"][GROUP_LABEL] = names.pod_group_name(context.name, attempt_of(pod))
        pod["spec"]["schedulerName"] = context.pods.gang.coscheduling_scheduler
        return pod
