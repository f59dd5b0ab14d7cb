"""The two containers of a pod: the data buffer, a native sidecar, and the workers under their launcher."""

from __future__ import annotations

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.planning.plan import GroupPlan
from rljob_api.vocabulary import keys
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.pod.environment import buffer_env, store_variables, worker_env
from rljob_operator.manifests.pod.resources import buffer_resources, worker_resources
from rljob_operator.manifests.pod.security import container_security_context
from rljob_operator.manifests.pod.volumes import Mounted

PYTHON = ("python", "-P", "-m")
"""Without the current directory on the path: a file there must not stand in for a module of ours."""


def data_buffer(context: JobContext, group: GroupPlan, host: int, attempt: int, volumes: list[Mounted]) -> Manifest:
    """Workers start when its startup probe has passed; it ends after them."""
    healthz = {"httpGet": {"path": "/healthz", "port": "buffer-metrics"}}
    return {
        "name": keys.CONTAINER_BUFFER,
        "image": images.data_buffer if (images := context.attempt_images) else context.pods.images.data_buffer,
        "imagePullPolicy": context.pods.images.pull_policy,
        "restartPolicy": "Always",
        "command": [*PYTHON, "rljob_worker.databuffer"],
        "env": buffer_env(context, group, host, attempt),
        "ports": [
            {"name": "buffer", "containerPort": keys.PORT_BUFFER},
            {"name": "buffer-metrics", "containerPort": keys.PORT_BUFFER_METRICS},
        ],
        "resources": buffer_resources(context),
        "startupProbe": {**healthz, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 300},
        "livenessProbe": {**healthz, "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 6},
        "securityContext": container_security_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [volume.mount for volume in volumes if volume.buffer],
    }


def worker(context: JobContext, group: GroupPlan, host: int, attempt: int, volumes: list[Mounted]) -> Manifest:
    """Process 1 is the launcher, which starts one worker per accelerator."""
    return {
        "name": keys.CONTAINER_WORKER,
        "image": worker_image(context, group),
        "imagePullPolicy": context.pods.images.pull_policy,
        "command": [*PYTHON, "rljob_worker.launcher"],
        "workingDir": keys.WORKSPACE,
        **({"envFrom": variables} if (variables := store_variables(context)) else {}),
        "env": worker_env(context, group, host, attempt),
        "ports": [{"name": "metrics", "containerPort": keys.PORT_WORKER_METRICS}],
        "resources": worker_resources(context, group),
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": "metrics"},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        "securityContext": container_security_context(needed_capabilities(context, group)),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [volume.mount for volume in volumes if volume.worker],
    }


def worker_image(context: JobContext, group: GroupPlan) -> str:
    """That of the attempt; or the profile's image, or that of the engine with which the group generates, or the
    operator's own."""
    if context.attempt_images is not None:
        return context.attempt_images.generator
    generating = (engine for engine in context.plan.engines if engine.group == group.name and engine.kind == "Rollout")
    named = (ROLLOUT_ENGINES[item.library].image for item in generating)
    own = next((image for image in named if image is not None), "worker")
    setting = f"{own}_cpu" if group.device == "cpu" else own
    ours: str = getattr(context.pods.images, setting, own)
    return context.profile(group).image or ours


def needed_capabilities(context: JobContext, group: GroupPlan) -> tuple[str, ...]:
    """What the accelerator needs; where anything is allowed, RDMA may lock the memory that devices read."""
    needed = context.profile(group).capabilities
    locks_memory = context.group(group.name).rdma is not None and context.spec.pod_security == "Privileged"
    return tuple(dict.fromkeys((*needed, *(("IPC_LOCK",) if locks_memory else ()))))
