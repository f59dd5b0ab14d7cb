"""Whether a pod has the accelerators that its group asks for. Pure: how they are counted is the caller's."""

from rljob_api.planning.plan import GroupPlan
from rljob_worker.errors import InvalidJob


def require_devices(group: GroupPlan, num_found: int) -> None:
    """InvalidJob, with the fix, where a pod of the group finds fewer devices than it has workers: starting again finds
    no more."""
    num_wanted = group.workers_per_host
    if num_found >= num_wanted:
        return
    found = "no" if num_found == 0 else f"only {num_found}"
    fix = "use profile cpu" if num_found == 0 else f"lower accelerator.count to {num_found}"
    raise InvalidJob(
        f"{found} {group.device.upper()} device{'s' if num_found > 1 else ''} for a pod of worker group {group.name}, "
        f"which wants {num_wanted} (profile {group.profile}); {fix}, or run where there are enough"
    )
