"""What every pod that serves a model has, whether the operator or KubeRay creates it."""

from __future__ import annotations

import math

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.v1alpha1 import ServiceSpec
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.quantity import amount, parse_quantity
from rljob_operator import names
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.pod.pods import WITHOUT_RIGHTS, place_of_pod, tolerations
from rljob_operator.manifests.pod.resources import mebibytes, template_cpu, times
from rljob_operator.manifests.pod.security import container_security_context, pod_security_context
from rljob_operator.manifests.pod.volumes import SCRATCH, TOKEN_FILE, Mounted

GRACE_SECONDS = 5
"""A request that is cut off is made again; nothing else of a service is worth waiting for."""

GATE_ENVIRONMENT = {keys.ENV_SERVICES_TOKEN_FILE: TOKEN_FILE, keys.ENV_SERVICES_SCRATCH: SCRATCH}
"""What the gate in front of the applications reads."""

HEALTHY: Manifest = {"httpGet": {"path": keys.PATH_SERVICE_HEALTHY, "port": "http"}, "timeoutSeconds": 5}
ALIVE: Manifest = {"httpGet": {"path": keys.PATH_SERVICE_ALIVE, "port": "http"}, "timeoutSeconds": 10}


def pod_spec(context: JobContext, profile: AcceleratorProfile, volumes: list[Mounted], container: Manifest) -> Manifest:
    """Spec of a pod around `container`."""
    return {
        **WITHOUT_RIGHTS,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": pod_security_context(context, profile),
        "containers": [container],
        "volumes": [volume.volume for volume in volumes],
        "tolerations": tolerations(context, profile),
        **{field: value for field, value in place_of_pod(context, profile).items() if value},
    }


def image_of(context: JobContext, profile: AcceleratorProfile) -> str:
    """The profile's, or the operator's own for CPUs or for CUDA."""
    images = context.pods.images
    return profile.serve_image or (images.serve if profile.device == "cpu" else images.serve_cuda)


def container_spec(
    context: JobContext, profile: AcceleratorProfile, volumes: list[Mounted], image: str, **more: object
) -> Manifest:
    """Spec of the container in which copies of a model run; `more` fields come before those that all have."""
    return {
        "name": keys.CONTAINER_SERVICE,
        "image": image,
        "imagePullPolicy": context.pods.images.pull_policy,
        "workingDir": keys.WORKSPACE,
        **more,
        "securityContext": container_security_context(profile.capabilities),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [volume.mount for volume in volumes],
    }


def name_in_domain(context: JobContext, service: ServiceSpec) -> Manifest:
    """Fields of a pod by which workers find it; several pods may have the same, and requests go to any of them."""
    return {"hostname": names.service_host(service.name), "subdomain": names.services_domain(context.name)}


def serving_resources(context: JobContext, service: ServiceSpec, profile: AcceleratorProfile, copies: int) -> Manifest:
    """Resources of `copies` of a model: what as many workers would request."""
    settings = context.pods.worker
    count = copies * service.worker_group.accelerator.count
    devices = dict(profile.resources)
    if profile.resource is not None:
        devices[profile.resource] = str(count)
    requests = {
        "cpu": times(settings.cpu, count),
        "memory": mebibytes(parse_quantity(settings.memory) * count),
        **devices,
    }
    return {"requests": requests, "limits": devices} if devices else {"requests": requests}


def threads_per_copy(context: JobContext, service: ServiceSpec, copies: int) -> int:
    """The share that one of `copies` has of the CPUs that their container asks for, in the template or by default; at
    least one."""
    requested = template_cpu(service.worker_group.template, keys.CONTAINER_SERVICE)
    if requested is None:
        cores = amount(context.pods.worker.cpu) * service.worker_group.accelerator.count
    else:
        cores = amount(requested) / copies
    return max(1, math.floor(cores))
