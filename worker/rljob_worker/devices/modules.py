"""The devices of this process, by torch's module for their type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

_ROUNDING = "pinned_max_round_threshold_mb"
"""Setting of torch's allocators: larger pieces of pinned memory are as large as is asked for."""


def num_devices(device_type: str) -> int:
    """How many devices of the type there are; 0 also where this torch, or its plugin, does not know the type."""
    try:
        module = torch.get_device_module(device_type)
    except RuntimeError:
        return 0
    return int(module.device_count())


@contextmanager
def kept_generators() -> Iterator[None]:
    """A block that may seed torch as it likes: the generators of the CPU, and of the accelerator where this process has
    begun to use it, are afterwards what they were."""
    accelerator = torch.accelerator.current_accelerator()
    states = [] if accelerator is None else _generator_states(torch.get_device_module(accelerator))
    try:
        with torch.random.fork_rng(devices=()):
            yield
    finally:
        for module, device, state in states:
            module.set_rng_state(state, device)


def _generator_states(module: Any) -> list[tuple[Any, int, torch.Tensor]]:
    """(module, device, state) of each device of a type that is in use."""
    devices = range(module.device_count()) if module.is_initialized() else range(0)
    return [(module, device, module.get_rng_state(device)) for device in devices]


def use(device_type: str, local_rank: int) -> torch.device:
    """The device of this process, which becomes the current one of its type."""
    if device_type == "cpu":
        # Autograd has a thread for each device that it counts at its first backward, and counts eight that are none
        # once a library has traced with fake tensors, as sharded parameters do.
        torch.ones((), requires_grad=True).backward()
        return torch.device("cpu")
    device = torch.device(device_type, local_rank)
    torch.get_device_module(device).set_device(device)
    pin_what_is_asked_for()
    return device


def pin_what_is_asked_for() -> None:
    """Have torch pin as many bytes of the host's memory as a tensor has: by itself it pins a power of two, a third more
    in all for the copies of a model. A user's own setting stays; a torch without it stays as it is."""
    with suppress(AttributeError, ValueError, RuntimeError):
        settings = torch._C._accelerator_getAllocatorSettings()
        if _ROUNDING not in settings:
            torch._C._accelerator_setAllocatorSettings(",".join(filter(None, (settings, f"{_ROUNDING}:1"))))
