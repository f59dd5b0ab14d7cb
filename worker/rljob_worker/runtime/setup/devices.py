"""What accelerators torch has in this process."""

import torch

from rljob_api.planning.plan import GroupPlan
from rljob_worker.accelerators import require_devices


def require_devices_of_torch(group: GroupPlan) -> None:
    """Before anything is built on a device, and before a collective waits for whoever has none.

    Raises InvalidJob where torch has fewer devices than this pod of the group has workers.
    """
    if group.device != "cpu":
        require_devices(group, num_devices(group.device))


def num_devices(device: str) -> int:
    """How many devices of the type there are; 0 also where this torch, or its plugin, does not know the type."""
    try:
        module = torch.get_device_module(device)
    except RuntimeError:
        return 0
    return int(module.device_count())
