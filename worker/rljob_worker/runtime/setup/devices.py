"""What a worker computes on: has torch the accelerators of its group, and is a CPU fast in the job's number format?"""

import torch

from rljob_api.planning.plan import GroupPlan, Plan
from rljob_worker.devices.modules import num_devices, use
from rljob_worker.engines.deterministic import compute_deterministically
from rljob_worker.visible_devices import require_devices


def require_devices_of_torch(group: GroupPlan) -> None:
    """Before anything is built on a device, and before a collective waits for a rank that has none.

    Raises InvalidJob where torch has fewer devices than this pod of the group has workers.
    """
    if group.device != "cpu":
        require_devices(group, num_devices(group.device))


def device_of_worker(plan: Plan, group: GroupPlan, local_rank: int) -> torch.device:
    """What a worker computes on, which becomes the current device, and computes as the job wants."""
    device = use(group.device, local_rank)
    if plan.spec.training.deterministic:
        compute_deterministically(device)
    return device


def slow_precision(plan: Plan, group: GroupPlan, cpu_has_bfloat16: bool) -> str | None:
    """What to say to the person who started the job; None where the group computes its format fast."""
    if group.device != "cpu" or plan.precision != "BFloat16" or cpu_has_bfloat16:
        return None
    return (
        "training.precision is BFloat16, and this CPU has no instructions for it: its matrix products take tens of "
        "times longer than in Float32; set training.precision: Float32"
    )


def cpu_has_bfloat16() -> bool:
    """What oneDNN says, which multiplies torch's bfloat16 matrices on a CPU, within its ONEDNN_MAX_CPU_ISA.

    True also for AVX-512 without bfloat16 instructions, where it takes 1.5 times as long as float32. What torch.cpu
    says of the processor itself does not show which kernels are used.
    """
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
