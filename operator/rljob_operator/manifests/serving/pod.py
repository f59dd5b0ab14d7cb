"""The pod of a service: a model beside the job, on a Ray of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.v1alpha1 import ServiceSpec
from rljob_api.vocabulary import keys
from rljob_operator import names
from rljob_operator.manifests.context import JobContext, Manifest, Placement
from rljob_operator.manifests.metadata import metadata
from rljob_operator.manifests.pod.containers import PYTHON
from rljob_operator.manifests.pod.environment import CODE_PATH, EnvList, as_list, by_name, given_variables
from rljob_operator.manifests.pod.pods import ANYWHERE, placed, templated, vendor_annotations
from rljob_operator.manifests.pod.volumes import (
    PLAN_FILE,
    Mounted,
    host_volumes,
    identity_volumes,
    scratch_volumes,
    users_volumes,
)
from rljob_operator.manifests.serving.template import (
    ALIVE,
    GATE_ENVIRONMENT,
    HEALTHY,
    container_spec,
    image_of,
    name_in_domain,
    pod_spec,
    serving_resources,
    threads_per_copy,
)

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
    profile = context.profile_of_service(service)
    labels = {keys.LABEL_SERVICE: service.name, **profile.labels}
    name = names.service_pod_name(context.name, service.name, start)
    volumes = [
        *identity_volumes(context),
        *scratch_volumes(context),
        *users_volumes(context),
        *host_volumes(profile),
    ]
    container = _container(context, service, profile, volumes)
    ours = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata(context, name, keys.CONTAINER_SERVICE, labels),
            "annotations": {**vendor_annotations(profile, 1), keys.ANNOTATION_PLAN_HASH: context.plan_hash},
        },
        "spec": {**name_in_domain(context, service), **pod_spec(context, profile, volumes, container)},
    }
    return placed(templated(ours, service.worker_group.template), placement)


def _container(
    context: JobContext, service: ServiceSpec, profile: AcceleratorProfile, volumes: list[Mounted]
) -> Manifest:
    probe_seconds = math.ceil((START_SECONDS + service.health_seconds) / PROBE_SECONDS)
    return container_spec(
        context,
        profile,
        volumes,
        image_of(context, profile),
        command=[*PYTHON, "rljob_worker.services", str(keys.PORT_SERVICE), service.name],
        env=_env(context, service, profile),
        ports=[{"name": "http", "containerPort": keys.PORT_SERVICE}],
        resources=serving_resources(context, service, profile, service.num_copies),
        startupProbe={**HEALTHY, "periodSeconds": PROBE_SECONDS, "failureThreshold": probe_seconds},
        readinessProbe={**HEALTHY, "periodSeconds": 5, "failureThreshold": 3},
        livenessProbe={**ALIVE, "periodSeconds": 20, "failureThreshold": 6},
    )


def _env(context: JobContext, service: ServiceSpec, profile: AcceleratorProfile) -> EnvList:
    own = {keys.ENV_PLAN: PLAN_FILE, keys.ENV_CODE: CODE_PATH, keys.ENV_LISTEN: "0.0.0.0", **GATE_ENVIRONMENT}
    threads = threads_per_copy(context, service, service.num_copies)
    return by_name(given_variables(context, profile, threads) + as_list(own))
