"""Which gang scheduler a job gets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_operator.manifests.context import JobContext
from rljob_operator.manifests.gang import coscheduling, native, volcano
from rljob_operator.manifests.gang.coscheduling import Coscheduling
from rljob_operator.manifests.gang.gang import Gang
from rljob_operator.manifests.gang.kueue import Kueue
from rljob_operator.manifests.gang.kueue_workload import GROUP as KUEUE
from rljob_operator.manifests.gang.kueue_workload import VERSIONS, QueuePriority, is_queued
from rljob_operator.manifests.gang.native import Native
from rljob_operator.manifests.gang.none import Ungrouped
from rljob_operator.manifests.gang.volcano import Volcano

APIS: Mapping[str, tuple[str, ...]] = {
    "Kueue": tuple(f"{KUEUE}/{version}" for version in VERSIONS),
    "Volcano": (volcano.API_VERSION,),
    "Coscheduling": (coscheduling.API_VERSION,),
    "Native": (native.API_VERSION,),
}
"""What the API server must serve for a provider: any of these."""

_MAKE: Mapping[str, Callable[[], Gang]] = {
    "None": Ungrouped,
    "Volcano": Volcano,
    "Coscheduling": Coscheduling,
    "Native": Native,
}


class Unserved(ValueError):
    """The job wants, or its accelerator needs, a scheduler that the cluster does not have."""


def select(context: JobContext, served: Collection[str], priority: QueuePriority | None = None) -> Gang:
    """The adapter for a job.  `served` are the API versions of the cluster, such as `kueue.x-k8s.io/v1beta2`.

    `Auto` takes Kueue for a job with its queue label; then what the accelerator needs; then Native, Volcano or
    Coscheduling, the first that is served; else None.
    """
    wanted = context.spec.scheduling.provider
    name = _automatic(context, served) if wanted == "Auto" else wanted
    _check_accelerators(context, name)
    if name != "None" and not _is_served(name, served):
        raise Unserved(_unserved(name))
    if name == "Native" and not context.pods.gang.native:
        raise Unserved("spec.scheduling.provider Native: it is off; set pods.gang.native in the operator's settings")
    if name == "Kueue":
        version = next(each for each in APIS[name] if each in served).partition("/")[2]
        return Kueue(version, priority)
    return _MAKE[name]()


def _automatic(context: JobContext, served: Collection[str]) -> str:
    if is_queued(context):
        return "Kueue"
    needed = _needed(context)
    if needed:
        return needed[0]
    candidates = (["Native"] if context.pods.gang.native else []) + ["Volcano", "Coscheduling"]
    return next((name for name in candidates if _is_served(name, served)), "None")


def _needed(context: JobContext) -> tuple[str, ...]:
    """Providers of which the accelerators of the job need one; empty: any will do."""
    needs = [profile.schedulers for profile in _profiles(context) if profile.schedulers]
    return tuple(name for name in needs[0] if all(name in each for each in needs)) if needs else ()


def _check_accelerators(context: JobContext, name: str) -> None:
    for profile in _profiles(context):
        if profile.schedulers and name not in profile.schedulers:
            raise Unserved(
                f"accelerator profile {profile.name} needs scheduling.provider {' or '.join(profile.schedulers)}, "
                f"and the job gets {name}: set spec.scheduling.provider, or schedulers of the profile in the chart"
            )


def _profiles(context: JobContext) -> list[AcceleratorProfile]:
    return [context.profile(group) for group in context.plan.groups]


def _is_served(name: str, served: Collection[str]) -> bool:
    return any(api in served for api in APIS[name])


def _unserved(name: str) -> str:
    return (
        f"spec.scheduling.provider {name}: the cluster does not serve {' or '.join(APIS[name])}; "
        f"install {name}, or choose another provider"
    )
