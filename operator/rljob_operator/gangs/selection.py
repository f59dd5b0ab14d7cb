"""Which gang scheduler or queue a job gets.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_operator.gangs.kueue.gang import Kueue
from rljob_operator.gangs.kueue.workload import QueuePriority
from rljob_operator.gangs.pod_groups import Coscheduling, Native, Volcano
from rljob_operator.gangs.provider import GangProvider, Ungrouped
from rljob_operator.manifests.context import JobContext, is_queued, names_queue

GANGS: Mapping[str, type[Ungrouped]] = {
    item.provider: item for item in (Ungrouped, Kueue, Volcano, Coscheduling, Native)
}
"""By provider, as in `scheduling.provider`."""


class Unserved(ValueError):
    """The job wants, or its accelerator needs, a scheduler that the cluster does not have."""


def select(context: JobContext, served: Collection[str], priority: QueuePriority | None = None) -> GangProvider:
    """The gang of a job.  `served` are the API versions of the cluster, such as `kueue.x-k8s.io/v1beta2`.

    `Auto` takes Kueue for a job with its queue label; then what the accelerator needs; then Kueue, where jobs have a
    default queue; then Native, Volcano or Coscheduling, the first that is served, for a job without services; else
    None.
    """
    wanted = context.spec.scheduling.provider
    gang = GANGS[_automatic(context, served) if wanted == "Auto" else wanted]
    _check_accelerators(context, gang.provider)
    if context.spec.services and not gang.counts_services:
        raise Unserved(
            f"spec.services: provider {gang.provider} counts the pods of an attempt, and services outlive attempts; "
            "write scheduling.provider Kueue or None, or serve the models elsewhere and give rewards their url"
        )
    version = _served_version(gang, served)
    if gang.api_versions and version is None:
        raise Unserved(
            f"spec.scheduling.provider {gang.provider}: the cluster does not serve {' or '.join(gang.api_versions)}; "
            f"install {gang.provider}, or choose another provider"
        )
    if gang is Native and not context.pods.gang.native:
        raise Unserved("spec.scheduling.provider Native: it is off; set pods.gang.native in the operator's settings")
    return Kueue(version, priority) if gang is Kueue and version is not None else gang()


def _automatic(context: JobContext, served: Collection[str]) -> str:
    if names_queue(context) or context.queues.required:
        return Kueue.provider
    needed = _needed(context)
    if needed:
        return needed[0]
    if is_queued(context):
        return Kueue.provider
    candidates = (*((Native,) if context.pods.gang.native else ()), Volcano, Coscheduling)
    usable = (candidate for candidate in candidates if candidate.counts_services or not context.spec.services)
    return next((item.provider for item in usable if _served_version(item, served)), Ungrouped.provider)


def _needed(context: JobContext) -> tuple[str, ...]:
    """Providers of which the accelerators of the job need one; empty: any will do."""
    needs = [profile.schedulers for profile in _profiles(context) if profile.schedulers]
    return tuple(name for name in needs[0] if all(name in need for need in needs)) if needs else ()


def _check_accelerators(context: JobContext, name: str) -> None:
    for profile in _profiles(context):
        if profile.schedulers and name not in profile.schedulers:
            raise Unserved(
                f"accelerator profile {profile.name} needs scheduling.provider {' or '.join(profile.schedulers)}, "
                f"and the job gets {name}: set spec.scheduling.provider, or schedulers of the profile in the chart"
            )


def _profiles(context: JobContext) -> list[AcceleratorProfile]:
    served = [context.profile_of_service(service) for service in context.spec.services]
    return [*(context.profile(group) for group in context.plan.groups), *served]


def _served_version(gang: type[Ungrouped], served: Collection[str]) -> str | None:
    """The newest that the cluster has of those that will do."""
    return next((api_version for api_version in gang.api_versions if api_version in served), None)
