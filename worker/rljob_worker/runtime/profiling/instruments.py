"""What torch can tell of a step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import profile, supported_activities

_MOST_EVENTS = 200_000
"""Allocations and releases of memory that are kept, the newest."""


class Instrument(Protocol):
    """Looks at one step."""

    def start(self) -> None: ...

    def write(self, stem: Path) -> None:
        """Stop, and write a file whose name begins with `stem`."""


class TorchTrace:
    """Operations and, on devices, their kernels: Chrome JSON, for ui.perfetto.dev."""

    def __init__(self) -> None:
        self._profile = profile(activities=supported_activities())

    def start(self) -> None:
        self._profile.start()

    def write(self, stem: Path) -> None:
        self._profile.stop()
        self._profile.export_chrome_trace(str(stem.with_name(stem.name + ".trace.json.gz")))


class MemorySnapshot:
    """Every allocation of a device since the step began, with where in Python it was made: for pytorch.org/memory_viz.

    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
    """

    def __init__(self, device_module: Any) -> None:
        """device_module: `torch.cuda`, or what another device has in its place."""
        self._module = device_module

    def start(self) -> None:
        self._module.memory._record_memory_history(stacks="python", max_entries=_MOST_EVENTS)

    def write(self, stem: Path) -> None:
        try:
            self._module.memory._dump_snapshot(str(stem.with_name(stem.name + ".memory.pickle")))
        finally:
            self._module.memory._record_memory_history(enabled=None)


def instruments_of_torch(device: torch.device) -> list[Callable[[], Instrument]]:
    """Snapshots of memory are of devices."""
    if device.type == "cpu":
        return [TorchTrace]
    return [TorchTrace, lambda: MemorySnapshot(torch.get_device_module(device))]
