"""Which kinds of pods a model beside the job has, and how many of each."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.v1alpha1 import ServiceSpec
from rljob_operator import names
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.serving.pod import service_pod
from rljob_operator.manifests.serving.ray_service import ray_pods


@dataclass(frozen=True)
class KindOfPod:
    """Pods that are all the same."""

    pod_set: str
    """What a queue calls them."""
    count: int
    pod: Manifest
    """One of them; of KubeRay's only labels, annotations and spec are known."""


def kinds_of_pods(context: JobContext, service: ServiceSpec) -> tuple[KindOfPod, ...]:
    """Those that the model takes, the operator's or KubeRay's."""
    own = names.service_pod_set(service.name)
    if not context.pods.ray_services:
        return (KindOfPod(own, 1, service_pod(context, service, 1)),)
    head, copy = ray_pods(context, service, {})
    return (
        KindOfPod(names.service_head_pod_set(service.name), 1, head),
        KindOfPod(own, service.num_copies, copy),
    )
