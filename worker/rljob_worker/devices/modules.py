"""The devices of this process, by torch's module for their type."""

from __future__ import annotations

import torch


def num_devices(device_type: str) -> int:
    """How many devices of the type there are; 0 also where this torch, or its plugin, does not know the type."""
    try:
        module = torch.get_device_module(device_type)
    except RuntimeError:
        return 0
    return int(module.device_count())


def use(device_type: str, local_rank: int) -> torch.device:
    """The device of this process, which becomes the current one of its type."""
    if device_type == "cpu":
        return torch.device("cpu")
    device = torch.device(device_type, local_rank)
    torch.get_device_module(device).set_device(device)
    return device
