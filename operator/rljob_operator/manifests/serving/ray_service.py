"""A model beside the job as a RayService, from which KubeRay makes a Ray of its own: a head, and a pod for each copy.

https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/rayservice.html, `ray.io/v1`.  KubeRay knows authOptions
since 1.5, and spec.suspend only since 1.7, so what is suspended is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from types import MappingProxyType

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.catalogue.services import PREFIX, RAY_APPLICATION, RAY_GATE, RAY_GPU, RAY_TIMEOUTS, RAY_VERSION
from rljob_api.planning.serving import ServicePlan, service_plan
from rljob_api.v1alpha1 import ServiceSpec
from rljob_api.vocabulary import keys
from rljob_operator import names
from rljob_operator.manifests.context import JobContext, Manifest, Placement
from rljob_operator.manifests.metadata import labels, metadata
from rljob_operator.manifests.pod.environment import CODE_PATH, EnvList, as_list, by_name, given_variables
from rljob_operator.manifests.pod.pods import ANYWHERE, placed, templated, vendor_annotations
from rljob_operator.manifests.pod.volumes import (
    Mounted,
    host_volumes,
    scratch_volumes,
    token_volume,
    users_volumes,
)
from rljob_operator.manifests.serving.template import (
    ALIVE,
    GATE_ENVIRONMENT,
    container_spec,
    image_of,
    name_in_domain,
    pod_spec,
    serving_resources,
    threads_per_copy,
)

API_VERSION = "ray.io/v1"
KIND = "RayService"

GROUP_NAME = "copies"

OBJECT_STORE_BYTES = 100 << 20
"""Requests and answers are small; Ray's least is 75 MiB."""

HEAD_RESOURCES = {"requests": {"cpu": "500m", "memory": "2048Mi"}}
"""Ray's bookkeeping, the controller of Ray Serve and the dashboard that KubeRay asks; no copy of a model."""

PLACES = 1024
"""For copies of an application that says itself how many there are: as many as a service may have.  They take turns on
the cores rather than wait for ever."""

PORT_STORE, PORT_DASHBOARD, PORT_AGENT = 6379, 8265, 52365
"""Ports of Ray: the cluster's state, what KubeRay asks, and what a pod says of itself."""


def ray_services(
    context: JobContext, starts: Mapping[str, int], *, placements: Mapping[str, Placement] | None = None
) -> list[Manifest]:
    """Those of the services in `starts`, by name and number; `placements` is where a queue wants their pods."""
    return [ray_service(context, context.service(name), start, placements or {}) for name, start in starts.items()]


def ray_service(
    context: JobContext, service: ServiceSpec, start: int, placements: Mapping[str, Placement] | None = None
) -> Manifest:
    """What KubeRay is asked for.  It makes another Ray where its head ends, and none where this text changes."""
    head, copy = ray_pods(context, service, placements or {})
    parameters = {"object-store-memory": str(OBJECT_STORE_BYTES)}
    places = 1 if service.run.startswith(PREFIX) else PLACES
    served = service_plan(service, context.profiles)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata(
            context,
            names.ray_service_name(context.name, service.name, start),
            keys.CONTAINER_SERVICE,
            {keys.LABEL_SERVICE: service.name},
        ),
        "spec": {
            "serveConfigV2": serve_config(service, served),
            "upgradeStrategy": {"type": "None"},
            "excludeHeadPodFromServeSvc": True,
            "rayClusterConfig": {
                "rayVersion": RAY_VERSION,
                "authOptions": {"mode": "token"},
                "enableInTreeAutoscaling": False,
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0", **parameters},
                    "template": head,
                },
                "workerGroupSpecs": [
                    {
                        "groupName": GROUP_NAME,
                        "replicas": served.copies,
                        "minReplicas": served.copies,
                        "maxReplicas": served.copies,
                        "rayStartParams": {"num-cpus": str(places), **_accelerators(served), **parameters},
                        "template": copy,
                    }
                ],
            },
        },
    }


def serve_config(service: ServiceSpec, served: ServicePlan) -> str:
    """Configuration of Ray Serve, as JSON, which is YAML without its surprises.  It has the whole service in it: a plan
    may be gone when KubeRay makes a pod anew."""
    application = {
        "name": service.name,
        "route_prefix": f"/{service.name}",
        "import_path": RAY_APPLICATION,
        "args": {"service": service.to_json(), "plan": served.to_json()},
    }
    config = {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": keys.PORT_SERVICE},
        "logging_config": {"enable_access_log": False},
        "applications": [application],
    }
    return json.dumps(config, indent=1)


def _accelerators(served: ServicePlan) -> dict[str, str]:
    """Ray's start parameters for a pod's accelerators: it finds only those of some vendors by itself.  KubeRay writes
    them into a command for a shell."""
    if served.ray_resource is None:
        return {}
    if served.ray_resource == RAY_GPU:
        return {"num-gpus": str(served.accelerators)}
    return {"resources": f"'{json.dumps({served.ray_resource: served.accelerators})}'"}


def ray_pods(
    context: JobContext, service: ServiceSpec, placements: Mapping[str, Placement]
) -> tuple[Manifest, Manifest]:
    """The template of the head, and of a copy: ours, the user's over it, and over both what a queue decided."""
    profile = context.profile_of_service(service)
    users = service.worker_group.template
    head = templated(_head(context, service, image_of(context, profile)), _without_resources(users))
    copy = templated(_copy(context, service, profile), users)
    return (
        placed(head, placements.get(names.service_head_pod_set(service.name), ANYWHERE)),
        placed(copy, placements.get(names.service_pod_set(service.name), ANYWHERE)),
    )


def _head(context: JobContext, service: ServiceSpec, image: str) -> Manifest:
    """On any node: it has no copy.  Applications are imported in it, so it has their code and image."""
    profile = context.profiles["cpu"]
    volumes = [token_volume(context), *scratch_volumes(context), *users_volumes(context)]
    alive = {"httpGet": {"path": "/api/gcs_healthz", "port": "dashboard"}, "timeoutSeconds": 10}
    container = container_spec(
        context,
        profile,
        volumes,
        image,
        env=_env(context, profile, 1),
        ports=[
            {"name": "gcs-server", "containerPort": PORT_STORE},
            {"name": "dashboard", "containerPort": PORT_DASHBOARD},
            {"name": "serve", "containerPort": keys.PORT_SERVICE},
        ],
        resources=HEAD_RESOURCES,
        readinessProbe={**alive, "periodSeconds": 5, "failureThreshold": 12},
        livenessProbe={**alive, "periodSeconds": 20, "failureThreshold": 15},
    )
    return _template(context, service, keys.COMPONENT_SERVICE_HEAD, pod_spec(context, profile, volumes, container))


def _copy(context: JobContext, service: ServiceSpec, profile: AcceleratorProfile) -> Manifest:
    """Ready while Ray Serve's proxy of this pod answers, which is only where there is a copy."""
    volumes: list[Mounted] = [
        token_volume(context),
        *scratch_volumes(context),
        *users_volumes(context),
        *host_volumes(profile),
    ]
    container = container_spec(
        context,
        profile,
        volumes,
        image_of(context, profile),
        env=_env(context, profile, threads_per_copy(context, service, 1)),
        ports=[
            {"name": "serve", "containerPort": keys.PORT_SERVICE},
            {"name": "agent", "containerPort": PORT_AGENT},
        ],
        resources=serving_resources(context, service, profile, 1),
        readinessProbe={**ALIVE, "httpGet": {**ALIVE["httpGet"], "port": "serve"}, "periodSeconds": 5},
        livenessProbe={
            "httpGet": {"path": "/api/local_raylet_healthz", "port": "agent"},
            "timeoutSeconds": 10,
            "initialDelaySeconds": 30,
            "periodSeconds": 20,
            "failureThreshold": 15,
        },
    )
    spec = {**name_in_domain(context, service), **pod_spec(context, profile, volumes, container)}
    annotations = vendor_annotations(profile, service.num_copies)
    return _template(context, service, keys.CONTAINER_SERVICE, spec, own_labels=profile.labels, annotations=annotations)


def _template(
    context: JobContext,
    service: ServiceSpec,
    component: str,
    spec: Manifest,
    *,
    own_labels: Mapping[str, str] = MappingProxyType({}),
    annotations: Mapping[str, str] = MappingProxyType({}),
) -> Manifest:
    result = {**labels(context, component), keys.LABEL_SERVICE: service.name, **own_labels}
    return {"metadata": {"labels": result, "annotations": dict(annotations)}, "spec": spec}


def _env(context: JobContext, profile: AcceleratorProfile, num_threads: int) -> EnvList:
    """KubeRay adds Ray's own token.  The job's modules come first on the path, for Ray's processes take no other."""
    own = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_COLOR_PREFIX": "0",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": RAY_GATE,
        **RAY_TIMEOUTS,
        "PYTHONPATH": CODE_PATH,
        keys.ENV_CODE: CODE_PATH,
        **GATE_ENVIRONMENT,
    }
    return by_name(given_variables(context, profile, num_threads) + as_list(own))


def _without_resources(template: Manifest) -> Manifest:
    """The user's template, of whose containers the head has everything but what a copy asks for."""
    result = deepcopy(template)
    for container in (result.get("spec") or {}).get("containers") or ():
        if container is not None:
            container.pop("resources", None)
    return result
