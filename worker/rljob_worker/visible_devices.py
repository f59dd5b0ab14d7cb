"""This machine's accelerators, as far as they are known without torch: what the user made visible, and the driver.

What is not known here, such as how many devices a driver has, the workers find out before they start.
"""

import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence

from rljob_api.catalogue.profiles import DEFAULT, AcceleratorProfile
from rljob_api.planning.plan import GroupPlan, Plan
from rljob_api.planning.serving import ServicePlan
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.errors import InvalidJob

DRIVER_LIBRARIES = {"nvidia.com/gpu": "libcuda.so.1"}
"""By a profile's resource: the library without which torch has none of its devices."""


def is_loadable(library: str) -> bool:
    """Whether this machine has the library; loading it touches no device."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def check_devices(
    plan: Plan, here: Sequence[Host], base: Mapping[str, str], has_library: Callable[[str], bool] = is_loadable
) -> None:
    """InvalidJob where this machine certainly has fewer devices than a pod asks for.

    here: the pods that run on it.  base: the environment that workers inherit.
    """
    for pod in here:
        group = plan.group(pod.group)
        profile = DEFAULT.get(group.profile)
        if profile is None:
            continue
        driver = DRIVER_LIBRARIES.get(profile.resource or "")
        if driver is not None and not has_library(driver):
            require_devices(group, 0)
        if visible_devices(profile, base) is not None and not _is_set_by_job(profile, plan):
            require_devices(group, len(share_of(plan, here, pod, profile, base)))


def check_devices_of_services(
    plan: Plan, here: Sequence[Host], base: Mapping[str, str], has_library: Callable[[str], bool] = is_loadable
) -> None:
    """InvalidJob where this machine certainly has fewer devices than the pods `here` and the services take together."""
    for service in plan.services:
        profile = DEFAULT.get(service.profile)
        if profile is None or not service.accelerators:
            continue
        if _is_set_by_job(profile, plan):
            raise InvalidJob(
                f'spec.env sets {profile.visible_devices_env} for workers and for service "{service.name}" alike, '
                "which would share accelerators: leave it out there, and export it where the job is started"
            )
        driver = DRIVER_LIBRARIES.get(profile.resource or "")
        visible = [] if driver is not None and not has_library(driver) else visible_devices(profile, base)
        if visible is not None:
            _require_devices_of_service(plan, here, service, visible)


def _require_devices_of_service(plan: Plan, here: Sequence[Host], service: ServicePlan, visible: Sequence[str]) -> None:
    first = _first_of_service(plan, here, service)
    num_left = max(0, len(visible) - first)
    if num_left < service.num_accelerators:
        others = f" besides the {first} that workers and other services take" if first else ""
        raise InvalidJob(
            f'service "{service.name}" wants {service.num_accelerators} {service.device.upper()} devices (profile '
            f"{service.profile}){others}, and {num_left or 'none'} of {len(visible)} are left; lower its "
            "workerGroup.replicas or accelerator.count, use profile cpu, or run where there are enough"
        )


def service_variables(plan: Plan, here: Sequence[Host], base: Mapping[str, str]) -> dict[str, str]:
    """The variables that give the services their share of the accelerators of a machine: those behind its pods'.
    Nothing for CPUs."""
    result: dict[str, str] = {}
    shares: dict[str, list[str]] = {}
    for service in plan.services:
        profile = DEFAULT.get(service.profile)
        if profile is None or profile.visible_devices_env is None or not service.accelerators:
            continue
        first = _first_of_service(plan, here, service)
        share = _devices(profile, base, slice(first, first + service.num_accelerators))
        shares.setdefault(profile.visible_devices_env, []).extend(share)
        result |= profile.env
    return {**result, **{name: ",".join(share) for name, share in shares.items()}}


def _first_of_service(plan: Plan, here: Sequence[Host], service: ServicePlan) -> int:
    """How many devices of its type are taken by pods, and by the services before it."""
    groups = (plan.group(pod.group) for pod in here)
    before = plan.services[: plan.services.index(service)]
    return sum(item.workers_per_host for item in groups if item.device == service.device) + sum(
        item.num_accelerators for item in before if item.device == service.device
    )


def uncounted_groups(
    plan: Plan, base: Mapping[str, str], has_library: Callable[[str], bool] = is_loadable
) -> list[GroupPlan]:
    """Worker groups of whose accelerators nothing is known here: their workers count them."""
    return [group for group in plan.groups if _is_uncounted(group.profile, base, has_library)]


def uncounted_services(
    plan: Plan, base: Mapping[str, str], has_library: Callable[[str], bool] = is_loadable
) -> list[ServicePlan]:
    """Services of whose accelerators nothing is known here: their copies count them."""
    return [service for service in plan.services if _is_uncounted(service.profile, base, has_library)]


def _is_uncounted(name: str, base: Mapping[str, str], has_library: Callable[[str], bool]) -> bool:
    profile = DEFAULT.get(name)
    driver = DRIVER_LIBRARIES.get(profile.resource or "") if profile is not None else None
    is_known = profile is not None and (profile.resource is None or visible_devices(profile, base) is not None)
    return not is_known and (driver is None or has_library(driver))


def share_of(
    plan: Plan, here: Sequence[Host], pod: Host, profile: AcceleratorProfile, base: Mapping[str, str]
) -> list[str]:
    """The accelerators of one pod: the pods of a machine take them one after the other."""
    group = plan.group(pod.group)
    before = (plan.group(other.group) for other in here[: here.index(pod)])
    first = sum(other.workers_per_host for other in before if other.device == group.device)
    return _devices(profile, base, slice(first, first + group.workers_per_host))


def _devices(profile: AcceleratorProfile, base: Mapping[str, str], share: slice) -> list[str]:
    """What the user made visible is shared out; otherwise devices count from 0."""
    visible = visible_devices(profile, base)
    return [str(number) for number in range(share.start, share.stop)] if visible is None else visible[share]


def visible_devices(profile: AcceleratorProfile, base: Mapping[str, str]) -> list[str] | None:
    """What the user made visible by the profile's variable; None where nobody has said.

    As for CUDA, an empty list is none, and so is everything from a negative number on.
    """
    said = base.get(profile.visible_devices_env or "")
    if said is None:
        return None
    return list(itertools.takewhile(lambda item: item and not item.startswith("-"), map(str.strip, said.split(","))))


def _is_set_by_job(profile: AcceleratorProfile, plan: Plan) -> bool:
    """What spec.env says of the variable holds for all workers."""
    return any(variable.name == profile.visible_devices_env for variable in plan.spec.env)


def require_devices(group: GroupPlan, num_found: int) -> None:
    """InvalidJob, with the fix, where a pod of the group finds fewer devices than it has workers: starting again finds
    no more."""
    num_wanted = group.workers_per_host
    if num_found >= num_wanted:
        return
    result = "no" if num_found == 0 else f"only {num_found}"
    fix = "use profile cpu" if num_found == 0 else f"lower accelerator.count to {num_found}"
    raise InvalidJob(
        f"{result} {group.device.upper()} device{'s' if num_found > 1 else ''} for a pod of worker group {group.name}, "
        f"which wants {num_wanted} (profile {group.profile}); {fix}, or run where there are enough"
    )
