"""Copies of tensors from the memory of a device to that of the host, and from there to a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")

ALIGNMENT = 16
"""Bytes: where a tensor begins in memory that several share."""


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


def on_device(item: Item, device: torch.device) -> Item:
    """A dataclass or a tuple whose tensors, those of dataclasses and tuples in it included, are on a device: they go
    there in one copy, from pinned memory, and share memory there. Nothing waits for it."""
    if device.type == "cpu":
        return item
    tensors: list[torch.Tensor] = []

    def collect(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    _with_tensors(item, collect)
    moved = iter(in_one_copy(tensors, device))
    result: Item = _with_tensors(item, lambda _: next(moved))
    return result


def _with_tensors(item: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The item with other tensors, in the order of fields."""
    if isinstance(item, torch.Tensor):
        return change(item)
    if isinstance(item, tuple):
        return tuple(_with_tensors(part, change) for part in item)
    if is_dataclass(item) and not isinstance(item, type):
        return replace(item, **{field.name: _with_tensors(getattr(item, field.name), change) for field in fields(item)})
    return item


def in_one_copy(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Each on the device, of the bytes that all go as."""
    sizes = [tensor.numel() * tensor.itemsize for tensor in tensors]
    ends = list(accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes))
    runs = [slice(start, start + size) for start, size in zip([0, *ends], sizes, strict=False)]
    together = empty_on_host(torch.empty(ends[-1] if ends else 0, dtype=torch.uint8, device="meta"))
    for run, tensor in zip(runs, tensors, strict=True):
        if tensor.numel():  # what numpy leaves empty may have strides of 0, which no other dtype reads
            together[run].copy_(tensor.contiguous().flatten().view(torch.uint8))
    arrived = together.to(device, non_blocking=True)
    return [arrived[run].view(tensor.dtype).view(tensor.shape) for run, tensor in zip(runs, tensors, strict=True)]
