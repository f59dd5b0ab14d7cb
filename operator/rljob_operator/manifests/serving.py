"""The pod of a service: a model beside the job, on a Ray of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.v1alpha1 import ServiceSpec
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.quantity import amount, parse_quantity
from rljob_operator import names
from rljob_operator.manifests.context import JobContext, Manifest, Placement
from rljob_operator.manifests.metadata import metadata
from rljob_operator.manifests.pod.containers import PYTHON
from rljob_operator.manifests.pod.environment import CODE_PATH, EnvList, as_list, by_name, given_variables
from rljob_operator.manifests.pod.paths import PLAN_FILE, SCRATCH, TOKEN_FILE
from rljob_operator.manifests.pod.pods import ANYWHERE, WITHOUT_RIGHTS, place_of_pod, placed, templated, tolerations
from rljob_operator.manifests.pod.resources import mebibytes, template_cpu, times
from rljob_operator.manifests.pod.security import container_security_context, pod_security_context
from rljob_operator.manifests.pod.volumes import (
    Mounted,
    host_volumes,
    identity_volumes,
    scratch_volumes,
    users_volumes,
)

GRACE_SECONDS = 5
"""A request that is cut off is made again; nothing else of a service is worth waiting for."""

START_SECONDS = 300
"""What Ray itself may take to start, five times over, on a node that is very busy.  Then healthSeconds begin, which the
process counts itself, and says why it gives up; the probe ends one that says nothing."""

PROBE_SECONDS = 2


def service_pods(
    context: JobContext, starts: Mapping[str, int], *, placements: Mapping[str, Placement] | None = None
) -> list[Manifest]:
    """Those of the services in `starts`, by name and number; `placements` is where a queue wants them."""
    where = placements or {}
    return [
        service_pod(context, context.service(name), start, where.get(names.service_pod_set(name), ANYWHERE))
        for name, start in starts.items()
    ]


def service_pod(context: JobContext, service: ServiceSpec, start: int, placement: Placement = ANYWHERE) -> Manifest:
    """One pod with all copies of the model: ours, the user's template over it, and over both what a queue decided."""
    profile = context.profiles[service.worker_group.accelerator.profile]
    labels = {keys.LABEL_SERVICE: service.name, **profile.labels}
    name = names.service_pod_name(context.name, service.name, start)
    ours = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata(context, name, keys.CONTAINER_SERVICE, labels),
            "annotations": {keys.ANNOTATION_PLAN_HASH: context.plan_hash},
        },
        "spec": _spec(context, service, profile),
    }
    return placed(templated(ours, service.worker_group.template), placement)


def _spec(context: JobContext, service: ServiceSpec, profile: AcceleratorProfile) -> Manifest:
    volumes = [
        *identity_volumes(context),
        *scratch_volumes(context),
        *users_volumes(context),
        *host_volumes(profile),
    ]
    return {
        "hostname": names.service_host(service.name),
        "subdomain": names.services_domain(context.name),
        **WITHOUT_RIGHTS,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": pod_security_context(context, profile),
        "containers": [_container(context, service, profile, volumes)],
        "volumes": [each.volume for each in volumes],
        "tolerations": tolerations(context, profile),
        **{field: value for field, value in place_of_pod(context, profile).items() if value},
    }


def _container(
    context: JobContext, service: ServiceSpec, profile: AcceleratorProfile, volumes: list[Mounted]
) -> Manifest:
    healthy = {"httpGet": {"path": keys.PATH_SERVICE_HEALTHY, "port": "http"}, "timeoutSeconds": 5}
    alive = {"httpGet": {"path": keys.PATH_SERVICE_ALIVE, "port": "http"}, "timeoutSeconds": 10}
    patience = math.ceil((START_SECONDS + service.health_seconds) / PROBE_SECONDS)
    return {
        "name": keys.CONTAINER_SERVICE,
        "image": profile.image or context.pods.images.serve,
        "imagePullPolicy": context.pods.images.pull_policy,
        "command": [*PYTHON, "rljob_worker.services", str(keys.PORT_SERVICE), service.name],
        "workingDir": keys.WORKSPACE,
        "env": _env(context, service, profile),
        "ports": [{"name": "http", "containerPort": keys.PORT_SERVICE}],
        "resources": _resources(context, service, profile),
        "startupProbe": {**healthy, "periodSeconds": PROBE_SECONDS, "failureThreshold": patience},
        "readinessProbe": {**healthy, "periodSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {**alive, "periodSeconds": 20, "failureThreshold": 6},
        "securityContext": container_security_context(profile.capabilities),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [each.mount for each in volumes],
    }


def _env(context: JobContext, service: ServiceSpec, profile: AcceleratorProfile) -> EnvList:
    own = {
        keys.ENV_PLAN: PLAN_FILE,
        keys.ENV_CODE: CODE_PATH,
        keys.ENV_LISTEN: "0.0.0.0",
        keys.ENV_SERVICES_TOKEN_FILE: TOKEN_FILE,
        keys.ENV_SERVICES_SCRATCH: SCRATCH,
    }
    return by_name(given_variables(context, profile, _threads_per_copy(context, service)) + as_list(own))


def _resources(context: JobContext, service: ServiceSpec, profile: AcceleratorProfile) -> Manifest:
    """Of all copies: what as many workers would ask for."""
    settings = context.pods.worker
    count = num_copies(service) * service.worker_group.accelerator.count
    devices = dict(profile.resources)
    if profile.resource is not None:
        devices[profile.resource] = str(count)
    requests = {
        "cpu": times(settings.cpu, count),
        "memory": mebibytes(parse_quantity(settings.memory) * count),
        **devices,
    }
    return {"requests": requests, "limits": devices} if devices else {"requests": requests}


def num_copies(service: ServiceSpec) -> int:
    """The most that there may be."""
    return service.worker_group.replicas if service.autoscaling is None else service.autoscaling.max_replicas


def _threads_per_copy(context: JobContext, service: ServiceSpec) -> int:
    """A copy's share of the CPUs that the container asks for, in the template or by default; at least one."""
    requested = template_cpu(service.worker_group.template, keys.CONTAINER_SERVICE)
    if requested is None:
        cores = amount(context.pods.worker.cpu) * service.worker_group.accelerator.count
    else:
        cores = amount(requested) / num_copies(service)
    return max(1, math.floor(cores))
