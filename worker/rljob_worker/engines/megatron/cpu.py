"""Megatron-core on CPUs: it asks CUDA which device to make memory on, and here the answer is the CPU.

Its modules get a `torch` of their own, that differs in this answer; nobody else sees it. No process with a GPU imports
this file.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

_MODULES = ("megatron.core.tensor_parallel.layers", "megatron.core.tensor_parallel.mappings", "megatron.core.utils")
"""Those that make memory in forward and backward passes."""


class _CUDA:
    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    def current_device(self) -> torch.device:
        return torch.device("cpu")


class _Torch:
    cuda = _CUDA()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


_TORCH = _Torch()


def make_memory_on_cpus() -> None:
    """Idempotent."""
    for name in _MODULES:
        vars(importlib.import_module(name))["torch"] = _TORCH
