"""A CUDA device without numbers: a model runs on it to the end, and what a device would be asked for is recorded.

Backward passes cannot run on it: autograd asks CUDA for a context.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor.debug
import torch.nn.functional as F
import torch.testing._internal.distributed.fake_pg
import torch.utils._pytree
from torch.overrides import TorchFunctionMode

from rljob_api.pipeline.meshes import Mesh
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.engines import rms_norm
from rljob_worker.engines.attention.heads import key_heads
from rljob_worker.engines.fsdp import FSDPEngine
from rljob_worker.engines.fsdp.layers import TRANSFORMERS
from rljob_worker.engines.fsdp.settings import TrainSettings
from rljob_worker.engines.fsdp.tensors.parts import Parts
from rljob_worker.engines.log_probs import linear
from rljob_worker.engines.micro_batch import MicroBatch, response_log_probs
from rljob_worker.engines.parallel.context import Sharing
from rljob_worker.engines.parallel.mesh import ProcessMesh, build_meshes
from rljob_worker.engines.tests.builders import a_batch
from rljob_worker.engines.tests.collective_order import Call, read_calls, written_calls

CUDA = torch.device("cuda", 0)
HOPPER = (9, 0)
MEMORY = 80 << 30

WAITS = frozenset({"_local_scalar_dense", "nonzero", "masked_select", "bincount", "equal", "unique_dim", "_unique2"})
"""Operators whose result, or its shape, the host has to know."""

COPIES = frozenset({"where", "index", "index_put", "index_put_"})
"""Operators that copy a number or an index that they are given in host memory, and wait for the copy."""


class Asked(torch.utils._python_dispatch.TorchDispatchMode):
    """What was asked of the device."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.copies: list[str] = []
        """Of each from the host to the device "pinned" or "pageable"."""
        self.waits: list[str] = []
        """Operators for whose result the host waits."""
        self.attentions: list[dict[str, Any]] = []
        """Of each call of torch's attention: dtype, heads and key heads, whether it groups them and has a mask."""
        self.num_splits: list[int | None] = []
        """Of each call of the kernel for rows of different lengths."""
        self._pinned: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        name = operator.__name__.partition(".")[0]
        is_float32_product = name == "_grouped_mm" and arguments[0].dtype == torch.float32
        if is_float32_product or (name in WAITS and arguments[0].device.type == "cuda"):
            self.waits.append(name)
        if is_float32_product:  # the fake has none; torch reads on the host where the rows of each expert end
            result = arguments[0].new_empty(arguments[0].shape[0], arguments[1].shape[-1])
        elif name == "_local_scalar_dense":
            result = _number(arguments[0])
        else:
            result = operator(*arguments, **(options or {}))
        self.kernels[name] += 1
        if (options or {}).get("pin_memory"):
            self._pinned.append(result)
        if name == "_varlen_attn":
            self.num_splits.append({**_of_varlen_attn(arguments), **(options or {})}["num_splits"])
        if name in COPIES:
            self._brought(arguments)
        if name == "_to_copy":
            self._copied(arguments[0], result)
        elif name == "copy_":
            self._copied(arguments[1], arguments[0])
        return result

    def _brought(self, arguments: tuple[Any, ...]) -> None:
        tensors = [item for item in torch.utils._pytree.tree_leaves(arguments) if isinstance(item, torch.Tensor)]
        devices = [tensor.device.type for tensor in tensors]
        if "cuda" in devices:
            self.copies += ["pageable"] * devices.count("cpu")

    def _copied(self, source: torch.Tensor, target: torch.Tensor) -> None:
        if source.device.type == "cuda" and target.device.type == "cpu":
            self.waits.append("copy to the host")
        elif source.device.type == "cpu" and target.device.type == "cuda":
            is_pinned = any(torch._C._is_alias_of(source, item) for item in self._pinned)
            self.copies.append("pinned" if is_pinned else "pageable")


def _number(tensor: torch.Tensor) -> float | int:
    """What the host reads, made up: the tensor has none."""
    return 1.0 if tensor.is_floating_point() else 1


def _of_varlen_attn(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """By name, with those that were left out."""
    declared = torch.ops.torch_attn._varlen_attn.default._schema.arguments
    return {item.name: item.default_value for item in declared} | {
        item.name: value for item, value in zip(declared, arguments, strict=False)
    }


class _Attentions(TorchFunctionMode):
    """Notes how torch's attention is called, before it chooses a kernel by a device that is not there."""

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self._asked = asked

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: Any = (), options: dict[str, Any] | None = None
    ) -> Any:
        if function is F.scaled_dot_product_attention:
            query, key, *_ = arguments
            self._asked.attentions.append(
                {
                    "dtype": query.dtype,
                    "heads": (query.shape[1], key.shape[1]),
                    "grouped": (options or {}).get("enable_gqa", False),
                    "masked": (options or {}).get("attn_mask") is not None,
                }
            )
        return function(*arguments, **(options or {}))


@contextmanager
def on_cuda(monkeypatch: pytest.MonkeyPatch, model: torch.nn.Module) -> Iterator[None]:
    """A block in which there is such a device, of Hopper's kind, and the model is on it."""
    with monkeypatch.context() as patch, torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        patch.setattr(torch.cuda, "get_device_capability", lambda *_: HOPPER)
        patch.setattr(torch.cuda, "mem_get_info", lambda *_: (MEMORY, MEMORY))
        for module in model.modules():
            _move(module)
        yield
    for made_once in (rms_norm.constant, linear.at_once):
        made_once.cache_clear()  # for this device


@contextmanager
def recorded() -> Iterator[Asked]:
    with Asked() as asked, _Attentions(asked):
        yield asked


def engine_on_cuda(monkeypatch: pytest.MonkeyPatch, model: torch.nn.Module, settings: TrainSettings) -> FSDPEngine:
    """One rank's, of a model that an `on_cuda` block is for, with weights in the dtype that it computes in: others are
    gathered by FSDP, which asks CUDA for streams."""
    with monkeypatch.context() as patch:
        patch.setattr("rljob_worker.engines.fsdp.sharding.give_memory", lambda *_: None)  # it has some
        engine = FSDPEngine(model, settings, CUDA)
    # numbers of a fake cannot be read, those of the host included
    monkeypatch.setattr(engine, "agree_on_runs", lambda num_runs, counts: (num_runs, counts))
    monkeypatch.setattr(engine.agreement, "maximum", lambda number: number)
    return engine


def calls_of_ranks(
    monkeypatch: pytest.MonkeyPatch, directory: Path, models: list[torch.nn.Module], mesh: Mesh
) -> tuple[list[Asked], list[list[Call]]]:
    """Each rank of a mesh computes a forward pass with its model, one after the other as nothing is exchanged."""
    batch, result = a_batch([5, 1, 9, 3]), []
    for rank, model in enumerate(models):
        with _fake_rank(rank, mesh) as ranks:
            TRANSFORMERS.spread(model, Parts.of(ranks))
            sharing = Sharing.of(ranks, key_heads(model.config))
            with on_cuda(monkeypatch, model), recorded() as asked, written_calls(directory / f"{rank}.calls"):
                rows = MicroBatch.of(batch, np.arange(len(batch)), CUDA, sharing)
                response_log_probs(model, rows, 0.8)
        result.append(asked)
    return result, [read_calls(directory / f"{rank}.calls") for rank in range(mesh.size)]


@contextmanager
def world_of_fakes(rank: int, size: int) -> Iterator[None]:
    """A world of which this process is one rank, and in which nothing arrives."""
    if dist.is_initialized():
        dist.destroy_process_group()  # of one rank, made by an earlier test: a later one that wants it makes it again
    dist.init_process_group("fake", store=dist.HashStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _fake_rank(rank: int, mesh: Mesh) -> Iterator[ProcessMesh]:
    with world_of_fakes(rank, mesh.size):
        try:
            yield build_meshes([mesh], rank, CUDA, deadline_seconds=TEST_TIMEOUT_SECONDS)[mesh]
        finally:
            torch.distributed.tensor.debug._clear_sharding_prop_cache()


def _move(module: torch.nn.Module) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        setattr(module, name, torch.nn.Parameter(_on_device(parameter), False))
    for name, buffer in list(module.named_buffers(recurse=False)):
        setattr(module, name, _on_device(buffer))


def _on_device(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=CUDA)
