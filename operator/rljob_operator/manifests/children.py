"""Children that last as long as the job, and what stands in the way of any child."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.vocabulary import keys
from rljob_operator.manifests.agents import agents_pod
from rljob_operator.manifests.configmaps import plan_config_map, plan_size_problem
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.monitoring import pod_monitor
from rljob_operator.manifests.network import network_policy, service, services_headless_service, services_network_policy
from rljob_operator.manifests.pod.merge import without_nulls
from rljob_operator.manifests.pod.pods import pod
from rljob_operator.manifests.pod_security.standard import ENFORCE_LABEL, enforced, violations
from rljob_operator.manifests.secrets import tls_size_problem
from rljob_operator.manifests.serving.kinds import kinds_of_pods


def static_children(context: JobContext) -> list[Manifest]:
    """Plan, Service, and what monitoring and the network ask for; applied whenever they differ."""
    children = [plan_config_map(context), service(context)]
    if context.spec.services:
        children.append(services_headless_service(context))
    if context.pods.network_policy.enabled:
        children.append(network_policy(context))
        if context.spec.services and context.pods.ray_services:
            children.append(services_network_policy(context))
    if context.spec.monitoring.pod_monitor:
        children.append(pod_monitor(context))
    return children


def child_problems(context: JobContext) -> list[str]:
    """Why children of this job cannot be made, whatever the cluster looks like; empty when they can."""
    sizes = (plan_size_problem(context), tls_size_problem(context))
    return [*(size for size in sizes if size), *_image_problems(context)]


def pod_security_problem(context: JobContext, namespace_labels: Mapping[str, str]) -> str | None:
    """Why the namespace, or the job itself, would not admit the job's pods; None when both do."""
    for place, rendered in _each_pod(context):
        wished = context.spec.pod_security
        if result := violations(rendered, wished.lower()):
            return (
                f"{place} needs what spec.podSecurity {wished} forbids: {', '.join(result)}; "
                f"set spec.podSecurity to {_level_for(rendered)}"
            )
        demanded = enforced(namespace_labels)
        if result := violations(rendered, demanded.level, demanded.minor):
            return (
                f"{place} needs what namespace {context.namespace} forbids ({ENFORCE_LABEL}={demanded.level}): "
                f"{', '.join(result)}; run the job in a namespace that enforces {_level_for(rendered).lower()}"
            )
    return None


def _each_pod(context: JobContext) -> Iterator[tuple[str, Manifest]]:
    """One of each kind, and where in the spec it comes from."""
    for index, group in enumerate(context.plan.groups):
        yield f"workerGroups[{index}] {group.name} with profile {group.profile}", pod(context, group, 0, 1)
    for index, served in enumerate(context.spec.services):
        profile = served.worker_group.accelerator.profile
        for kind in kinds_of_pods(context, served):
            yield f"services[{index}] {served.name} with profile {profile}", kind.pod
    if (agents := context.spec.agent_group) is not None:
        yield "rollout.conversation.agentPool.workerGroup", agents_pod(context, agents, 1)


def _level_for(rendered: Manifest) -> str:
    """The strictest level that admits the pod."""
    return next(level for level in ("Restricted", "Baseline", "Privileged") if not violations(rendered, level.lower()))


def _image_problems(context: JobContext) -> Iterator[str]:
    """Images of ours run on CPUs and under CUDA; for other devices the site names one."""
    for index, group in enumerate(context.plan.groups):
        profile, template = context.profile(group), context.group(group.name).template
        if profile.image is None and not _has_image(profile, template, keys.CONTAINER_WORKER):
            path = f"spec.workerGroups[{index}].accelerator.profile"
            yield _no_image(path, profile, "image", keys.CONTAINER_WORKER)
    for index, served in enumerate(context.spec.services):
        profile, template = context.profile_of_service(served), served.worker_group.template
        if profile.serve_image is None and not _has_image(profile, template, keys.CONTAINER_SERVICE):
            path = f"spec.services[{index}].workerGroup.accelerator.profile"
            yield _no_image(path, profile, "serveImage", keys.CONTAINER_SERVICE)


def _has_image(profile: AcceleratorProfile, template: Manifest, container: str) -> bool:
    """Whether ours runs on it, or the template names one."""
    containers = without_nulls(template).get("spec", {}).get("containers", ())
    named = any(item.get("name") == container and item.get("image") for item in containers)
    return named or profile.device in ("cpu", "cuda")


def _no_image(path: str, profile: AcceleratorProfile, field: str, container: str) -> str:
    return (
        f"{path} {profile.name}: no {container} image for {profile.device}; set acceleratorProfiles.{profile.name}."
        f"{field} in the chart's values, or image of container {container} in the group's template"
    )
