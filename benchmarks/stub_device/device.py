"""Torch's device type without a name, as an accelerator of Hopper's kind that has no numbers.

Fake tensors know shapes and take no memory, and autograd runs over them on this type, which it does not on CUDA where
there is none. Its streams do everything at once, and nothing arrives from other ranks. A process that has asked for it
once has it to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg as fake_groups
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.utils import backend_registration

from rljob_worker.engines import rms_norm
from rljob_worker.engines.attention import varlen
from rljob_worker.engines.fsdp.tensors.parts import Parts
from rljob_worker.engines.log_probs import linear
from rljob_worker.engines.parallel import expert

TYPE = "stub"


class _Event:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class _Stream(_Event):
    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> _Event:
        return event or _Event()


class _Module(backend_registration._DummyBackendModule):
    """What torch asks of the type."""

    Stream, Event = _Stream, _Event
    memory = 0

    def current_stream(self, device: Any = None) -> _Stream:
        return _Stream()

    def stream(self, stream: Any) -> Any:
        return nullcontext()

    def set_device(self, device: Any) -> None: ...

    def empty_cache(self) -> None: ...

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return self.memory, self.memory

    def memory_reserved(self, device: Any = None) -> int:
        return 0

    memory_allocated = memory_reserved

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class _Hooks(backend_registration._DummyPrivateUse1Hook):
    def has_primary_context(self, device: int) -> bool:
        return False


@cache
def _registered() -> _Module:
    # autograd counts devices at its first backward and has a thread for each, which would end the process
    torch.ones((), requires_grad=True).backward()
    module = _Module()
    # without a name torch takes CUDA for the accelerator that autograd asks
    backend_registration._setup_privateuseone_for_python_backend(TYPE, hook=_Hooks(), backend_module=module)
    dist.Backend.register_backend("stub", fake_groups._create_fake_pg, extended_api=True, devices=["cpu", TYPE])
    return module


DEVICE = torch.device("privateuseone", 0)
"""It has its own name, `TYPE`, once it is registered."""


def _with_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Computes with tensors that have some, such as ranks."""

    def call(*arguments: Any, **options: Any) -> Any:
        with unset_fake_temporarily():
            return function(*arguments, **options)

    return call


def _bincount(numbers: torch.Tensor, minlength: int) -> torch.Tensor:
    """Of numbers below `minlength`; it knows how many there were."""
    counts = torch.empty(minlength, dtype=torch.int64, device=numbers.device)
    counts.total = numbers.numel()
    return counts


def _agree_evenly(sent: Any, group: dist.ProcessGroup) -> tuple[list[int], list[int]]:
    """As many tokens go to each rank as come from it."""
    each, more = divmod(sent.total, group.size())
    counts = [each + (rank < more) for rank in range(group.size())]
    return counts, counts


class _NormKernel(torch.autograd.Function):  # type: ignore[misc]
    """What torch's kernel on CUDA takes and keeps; any other type gets six operators in its place."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scales = torch.empty(hidden.shape[:-1], dtype=torch.float32, device=hidden.device)
        ctx.save_for_backward(hidden, weight, scales)
        return torch.empty_like(hidden)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, weight, _ = ctx.saved_tensors
        return torch.empty_like(hidden), torch.empty_like(weight)


def _norm_in_one_kernel(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    weight = norm.weight + norm.offset if norm.offset else norm.weight
    return _NormKernel.apply(hidden, weight.to(hidden.dtype))


@contextmanager
def stub_device(memory: int) -> Iterator[None]:
    """A block in which tensors have shapes alone, and there is such a device with so many bytes."""
    _registered().memory = memory
    with ExitStack() as stack:
        for module, name, value in (
            (DeviceMesh, "__init__", _with_numbers(DeviceMesh.__init__)),
            (DeviceMesh, "from_group", staticmethod(_with_numbers(DeviceMesh.from_group))),
            (Parts, "placed", _with_numbers(Parts.placed)),
            (torch, "bincount", _bincount),
            (expert, "_agree", _agree_evenly),
            (varlen, "is_for_device", lambda *_: True),
            (rms_norm._Replaced, "forward", _norm_in_one_kernel),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        linear.at_once.cache_clear()
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield
    linear.at_once.cache_clear()


def without_numbers(model: torch.nn.Module) -> torch.nn.Module:
    """A model whose parameters have no memory yet, with buffers of shapes alone."""
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty_like(buffer, device=DEVICE))
    return model


@contextmanager
def world(rank: int, size: int) -> Iterator[None]:
    """A world of which this process is one rank, and in which nothing arrives."""
    dist.init_process_group("stub", store=dist.HashStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
