"""This machine's accelerators, as far as they are known without torch: what the user made visible, and the driver.

What is not known here, such as how many devices a driver has, the workers find out before they start.
"""

import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence

from rljob_api.catalogue.profiles import DEFAULT, AcceleratorProfile
from rljob_api.planning.plan import GroupPlan, Plan
from rljob_worker.accelerators import require_devices
from rljob_worker.databuffer.routes.hosts import Host

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


def uncounted_groups(
    plan: Plan, base: Mapping[str, str], has_library: Callable[[str], bool] = is_loadable
) -> list[GroupPlan]:
    """Worker groups of whose accelerators nothing is known here: their workers count them."""
    found = []
    for group in plan.groups:
        profile = DEFAULT.get(group.profile)
        driver = DRIVER_LIBRARIES.get(profile.resource or "") if profile is not None else None
        is_known = profile is not None and (profile.resource is None or visible_devices(profile, base) is not None)
        if not is_known and (driver is None or has_library(driver)):
            found.append(group)
    return found


def share_of(
    plan: Plan, here: Sequence[Host], pod: Host, profile: AcceleratorProfile, base: Mapping[str, str]
) -> list[str]:
    """The accelerators of one pod: the pods of a machine take them one after the other.

    What the user made visible is shared out; otherwise devices count from 0.
    """
    group = plan.group(pod.group)
    before = (plan.group(other.group) for other in here[: here.index(pod)])
    first = sum(other.workers_per_host for other in before if other.device == group.device)
    share = slice(first, first + group.workers_per_host)
    visible = visible_devices(profile, base)
    return [str(number) for number in range(share.start, share.stop)] if visible is None else visible[share]


def visible_devices(profile: AcceleratorProfile, base: Mapping[str, str]) -> list[str] | None:
    """What the user made visible by the profile's variable; None where nobody has said.

    As for CUDA, an empty list is none, and so is everything from a negative number on.
    """
    said = base.get(profile.visible_devices_env or "")
    if said is None:
        return None
    return list(itertools.takewhile(lambda each: each and not each.startswith("-"), map(str.strip, said.split(","))))


def _is_set_by_job(profile: AcceleratorProfile, plan: Plan) -> bool:
    """What spec.env says of the variable holds for all workers."""
    return any(variable.name == profile.visible_devices_env for variable in plan.spec.env)
