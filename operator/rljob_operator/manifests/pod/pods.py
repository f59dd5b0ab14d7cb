"""The pods of an attempt: one per host of each worker group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.planning.plan import GroupPlan
from rljob_api.vocabulary import keys
from rljob_operator import names
from rljob_operator.manifests.context import AttemptImages, JobContext, Manifest, Placement
from rljob_operator.manifests.metadata import metadata
from rljob_operator.manifests.pod.containers import data_buffer, worker, worker_image
from rljob_operator.manifests.pod.merge import merge
from rljob_operator.manifests.pod.security import pod_security_context
from rljob_operator.manifests.pod.topology import affinity, spread_constraint
from rljob_operator.manifests.pod.volumes import mounted_volumes

ANYWHERE = Placement()

WITHOUT_RIGHTS = {"restartPolicy": "Never", "automountServiceAccountToken": False, "enableServiceLinks": False}
"""Fields of every pod's spec: the operator makes another where one ends, and none knows of the API server."""


def pods(context: JobContext, attempt: int, *, placements: Mapping[str, Placement] | None = None) -> list[Manifest]:
    """Every pod of the attempt, groups in the plan's order; `placements` is where a queue wants them."""
    where = placements or {}
    return [
        pod(context, group, host, attempt, where.get(group.name, ANYWHERE))
        for group in context.plan.gang
        for host in range(group.replicas)
    ]


def pod(context: JobContext, group: GroupPlan, host: int, attempt: int, placement: Placement = ANYWHERE) -> Manifest:
    """One pod: ours, the user's template over it, and over both what a queue decided."""
    profile = context.profile(group)
    labels = {
        keys.LABEL_GROUP: group.name,
        keys.LABEL_HOST_INDEX: str(host),
        keys.LABEL_ATTEMPT: str(attempt),
        **profile.labels,
    }
    name = names.pod_name(context.name, group.name, host, attempt)
    ours = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata(context, name, keys.CONTAINER_WORKER, labels),
            "annotations": {
                **vendor_annotations(profile, context.num_pods),
                keys.ANNOTATION_PLAN_HASH: context.plan_hash,
                **(generator_image(context) if group.elastic is None else {}),
                keys.ANNOTATION_DELETION_GRACE: str(context.spec.lifecycle.deletion_grace_seconds),
            },
        },
        "spec": _spec(context, group, host, attempt),
    }
    return placed(templated(ours, context.group(group.name).template), placement)


def generator_image(context: JobContext) -> dict[str, str]:
    """The annotation by which guests that come later get the image that they would have now."""
    group = context.plan.elastic_group
    return {} if group is None else {keys.ANNOTATION_GENERATOR_IMAGE: worker_image(context, group)}


def images_of_attempt(pods: Iterable[Manifest], attempt: int) -> AttemptImages | None:
    """What the gang of an attempt has, as its pods are in the cluster; None where none of them says so."""
    for pod in pods:
        metadata = pod["metadata"]
        image = (metadata.get("annotations") or {}).get(keys.ANNOTATION_GENERATOR_IMAGE)
        if image and metadata["labels"].get(keys.LABEL_ATTEMPT) == str(attempt):
            containers = {item["name"]: item["image"] for item in pod["spec"].get("initContainers", ())}
            if keys.CONTAINER_BUFFER in containers:
                return AttemptImages(containers[keys.CONTAINER_BUFFER], image)
    return None


def guest_pod(context: JobContext, index: int, attempt: int, start: int) -> Manifest:
    """A pod of the elastic group: as one of a gang, with a name that no pod before it had."""
    group = context.plan.elastic_group
    assert group is not None, "no group is elastic"
    made = pod(context, group, index, attempt)
    made["metadata"]["name"] = names.guest_pod_name(context.name, group.name, index, attempt, start)
    return made


def templated(ours: Manifest, template: Manifest) -> Manifest:
    """A pod of ours with the user's template over it."""
    users = {"metadata": template.get("metadata") or {}, "spec": template.get("spec") or {}}
    merged: Manifest = merge(ours, users)
    return merged


def vendor_annotations(profile: AcceleratorProfile, num_pods: int) -> dict[str, str]:
    """The profile's annotations, with the number of pods that start together where a scheduler plugin wants to know
    it."""
    return {name: value.replace("{pods}", str(num_pods)) for name, value in profile.annotations.items()}


def _spec(context: JobContext, group: GroupPlan, host: int, attempt: int) -> Manifest:
    profile, volumes = context.profile(group), mounted_volumes(context, group, host, attempt)
    optional = {"affinity": affinity(context, group, attempt), **place_of_pod(context, profile)}
    return {
        "hostname": names.host_name(context.name, group.name, host),
        "subdomain": names.service_name(context.name),
        **WITHOUT_RIGHTS,
        "terminationGracePeriodSeconds": context.spec.lifecycle.termination_grace_seconds,
        "securityContext": pod_security_context(context, profile),
        "initContainers": [data_buffer(context, group, host, attempt, volumes)],
        "containers": [worker(context, group, host, attempt, volumes)],
        "volumes": [volume.volume for volume in volumes],
        "tolerations": tolerations(context, profile),
        "topologySpreadConstraints": [spread_constraint(context, group, attempt)],
        **{field: value for field, value in optional.items() if value},
    }


def place_of_pod(context: JobContext, profile: AcceleratorProfile) -> Manifest:
    """Fields that say on which nodes, and with what of them, a pod runs; those that are empty are to be left out."""
    return {
        "imagePullSecrets": _pull_secrets(context),
        "nodeSelector": dict(profile.node_selector),
        "priorityClassName": context.spec.scheduling.priority_class_name,
        "runtimeClassName": profile.runtime_class,
        "hostIPC": profile.host_ipc,
        "hostNetwork": profile.host_network,
        "dnsPolicy": "ClusterFirstWithHostNet" if profile.host_network else None,
    }


def tolerations(context: JobContext, profile: AcceleratorProfile) -> list[Manifest]:
    """Tolerations of nodes with the accelerator, and of a node that fails: Kubernetes' default is five minutes, in
    which the whole gang would wait for one dead node."""
    failing = [
        {
            "key": f"node.kubernetes.io/{condition}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": context.pods.node_failure_seconds,
        }
        for condition in ("not-ready", "unreachable")
    ]
    return [*profile.tolerations, *failing]


def _pull_secrets(context: JobContext) -> list[Manifest]:
    secrets = (*context.pods.images.pull_secrets, *context.spec.image_pull_secrets)
    return [{"name": name} for name in dict.fromkeys(secrets)]


def placed(pod: Manifest, placement: Placement) -> Manifest:
    """The pod where a queue wants it."""
    spec = pod["spec"]
    pod["metadata"]["labels"] |= placement.labels
    pod["metadata"]["annotations"] |= placement.annotations
    if placement.scheduling_gates:
        gates = [{"name": name} for name in placement.scheduling_gates]
        spec["schedulingGates"] = [*spec.get("schedulingGates", []), *gates]
    if placement.node_selector:
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **placement.node_selector}
    spec["tolerations"] = [*spec.get("tolerations", []), *(dict(toleration) for toleration in placement.tolerations)]
    return pod
