"""Copies of tensors in the memory of the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


def copies_on_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A copy of each, which is complete when this returns."""
    copies = [empty_on_host(tensor) for tensor in tensors]
    for tensor, copy in zip(tensors, copies, strict=True):
        copy.copy_(tensor.detach(), non_blocking=True)
    wait_for_copies(tensor.device for tensor in tensors)
    return copies


def empty_on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Memory for a copy; for a tensor on an accelerator pinned, which its device reaches by itself, where torch or the
    device's plugin can pin."""
    if tensor.device.type == "cpu":
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    try:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    except RuntimeError:
        return torch.empty(tensor.shape, dtype=tensor.dtype)


def wait_for_copies(devices: Iterable[torch.device]) -> None:
    """Until what is queued on the devices' current streams, such as copies to the host, is done."""
    for device in set(devices):
        if device.type != "cpu":
            torch.get_device_module(device).current_stream(device).synchronize()
