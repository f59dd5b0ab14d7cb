"""What a worker may still take of its device's memory, in bytes."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import torch

CGROUP = Path("/sys/fs/cgroup")
_VERSIONS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
"""Limit, usage and statistics, as the two versions of control groups call them."""


def free_memory(device: torch.device, workers_per_host: int = 1) -> int:
    """On an accelerator what nobody has taken and what torch keeps for later; on CPUs this worker's share of what the
    host, or the container, has left."""
    if device.type == "cpu":
        return min([host_free(), *container_free()]) // workers_per_host
    module = torch.get_device_module(device)
    kept = module.memory_reserved(device) - module.memory_allocated(device)
    return int(module.mem_get_info(device)[0]) + int(kept)


def free_of_driver(device: torch.device) -> int:
    """What the driver of an accelerator calls free, once torch has handed back what it keeps for later."""
    give_back(device)
    return int(torch.get_device_module(device).mem_get_info(device)[0])


def total_memory(device: torch.device) -> int:
    """Total memory of an accelerator, used or free."""
    return int(torch.get_device_module(device).mem_get_info(device)[1])


def give_back(device: torch.device) -> None:
    """Hand what was freed to the device, or to the kernel: torch and glibc keep it for later otherwise."""
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()
        return
    with suppress(AttributeError):  # glibc's alone
        ctypes.CDLL(None).malloc_trim(0)


def host_free(meminfo: Path = Path("/proc/meminfo")) -> int:
    """`MemAvailable`: what is free, and what the kernel would give up for it."""
    fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def container_free(root: Path = CGROUP) -> list[int]:
    """What is left up to the limit of each control group there is one in; pages of files that nobody uses are free."""
    result = []
    for limit, usage, statistics in _VERSIONS:
        if not (root / limit).is_file() or (most := (root / limit).read_text().strip()) == "max":
            continue
        fields = dict(line.split() for line in (root / statistics).read_text().splitlines())
        unused_pages = int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))
        result.append(max(0, int(most) - int((root / usage).read_text()) + unused_pages))
    return result
