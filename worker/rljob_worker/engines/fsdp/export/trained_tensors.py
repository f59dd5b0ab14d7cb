"""The tensors of a trained model out of its checkpoint, whole, a bucket at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rljob_api.memory.sizes import BUCKET_BYTES
from rljob_worker.engines.fsdp.checkpoint.sharded import Written
from rljob_worker.engines.fsdp.tensors.buckets import Named, Scattered, buckets
from rljob_worker.engines.fsdp.tensors.merged import with_product
from rljob_worker.engines.models import ADAPTER, adapted_layers, is_of_adapter

Fill = Callable[[Mapping[str, torch.Tensor]], object]
"""Fills tensors of the shapes of a module's parameters, by their names."""


@dataclass(frozen=True, slots=True)
class _Adapted:
    """A layer that an adapter is beside."""

    layer: Any
    low_rank: dict[str, torch.Tensor]
    """A and B without memory, by their names in the checkpoint."""


class TrainedTensors:
    """The trained tensors of a module without memory. What was trained is read from the checkpoint, whatever ranks
    wrote its parts; the rest, beside which an adapter was trained, from where it was then, and gets the adapter's
    product."""

    def __init__(
        self,
        module: torch.nn.Module,
        prefix: str,
        written: Written,
        kept: Collection[str],
        dtype: torch.dtype,
        *,
        base: Fill | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """prefix: before its parameters' names in the checkpoint, which has those that are `kept`. base: what fills the
        rest."""
        self.module, self.dtype = module, dtype
        self._prefix, self._written, self._kept = prefix, written, kept
        self._base, self._bucket_bytes = base, bucket_bytes
        names = {id(item): prefix + name for name, item in module.named_parameters()}
        self._adapted: dict[int, _Adapted] = {}
        for layer in adapted_layers(module):
            pair = [matrix[ADAPTER].weight for matrix in (layer.lora_A, layer.lora_B)]
            self._adapted[id(layer.get_base_layer().weight)] = _Adapted(layer, {names[id(item)]: item for item in pair})

    def parameters(self) -> Iterator[Named]:
        """The module's own, without memory; tied ones once."""
        return ((name, item) for name, item in self.module.named_parameters() if not is_of_adapter(name))

    def read(self, parameters: Iterable[Named]) -> Iterator[Named]:
        """Some of them, in order. At most a bucket, or a larger tensor, is in memory."""
        own = (Scattered(name, parameter) for name, parameter in parameters)
        for bucket in buckets(own, self._bucket_bytes, self.dtype):
            room = {tensor.name: torch.empty(tensor.here.shape, dtype=self.dtype) for tensor in bucket.tensors}
            self._fill(room)
            for tensor in bucket.tensors:
                yield tensor.name, self._merged(tensor.here, room.pop(tensor.name))

    def _fill(self, room: Mapping[str, torch.Tensor]) -> None:
        trained = {name: tensor for name, tensor in room.items() if self._prefix + name in self._kept}
        if trained:
            self._written.fill({"model": {self._prefix + name: tensor for name, tensor in trained.items()}})
        if rest := {name: tensor for name, tensor in room.items() if name not in trained}:
            assert self._base is not None, f"nobody has {', '.join(rest)}"
            self._base(rest)

    def _merged(self, parameter: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        adapted = self._adapted.get(id(parameter))
        if adapted is None:
            return weight
        room = {name: torch.empty(item.shape, dtype=item.dtype) for name, item in adapted.low_rank.items()}
        self._written.fill({"model": dict(room)})
        a, b = room.values()
        return with_product(weight, a, b, adapted.layer)
