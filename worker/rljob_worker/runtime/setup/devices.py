"""Whether torch has the accelerators that a worker group asks for."""

from rljob_api.planning.plan import GroupPlan
from rljob_worker.accelerators import require_devices
from rljob_worker.devices.modules import num_devices


def require_devices_of_torch(group: GroupPlan) -> None:
    """Before anything is built on a device, and before a collective waits for whoever has none.

    Raises InvalidJob where torch has fewer devices than this pod of the group has workers.
    """
    if group.device != "cpu":
        require_devices(group, num_devices(group.device))
