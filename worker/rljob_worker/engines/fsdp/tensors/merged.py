"""The tensors of a model, whether an adapter is beside it or not: under its own names, in their layout."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rljob_worker.engines.fsdp.tensors.buckets import Named
from rljob_worker.engines.fsdp.tensors.full import of_layers
from rljob_worker.engines.fsdp.tensors.parts import Parts
from rljob_worker.engines.models import ADAPTER, adapted_layers, adapter_parameters, base_name, is_of_adapter
from rljob_worker.engines.parallel.shards import laid_out_like, local_part, own_rows


def own_tensors(model: torch.nn.Module) -> Iterator[Named]:
    """The model's own parameters, as they are without what is beside them."""
    return ((base_name(name), p) for name, p in model.named_parameters() if not is_of_adapter(name))


def merged_tensors(model: torch.nn.Module, parts: Parts) -> Iterator[Named]:
    """The model's tensors with the adapter's product added, one at a time: W + alpha / rank · B A.

    Each rank adds its own rows. Collective: A and B are gathered on the way, a bucket of them at a time, so that every
    rank exhausts it.
    """
    low_rank = of_layers(adapter_parameters(model), parts)
    adapted = {id(layer.get_base_layer().weight): layer for layer in adapted_layers(model)}
    for name, parameter in own_tensors(model):
        layer = adapted.get(id(parameter))
        if layer is None:
            yield name, parameter
            continue
        a, b = (_own_part(*next(low_rank), parts) for _ in range(2))
        yield name, with_product(parameter.detach(), a, b, layer)
    assert next(low_rank, None) is None, "an adapter beside no layer"


def _own_part(name: str, whole: torch.Tensor, parts: Parts) -> torch.Tensor:
    """The part of an adapter's matrix that belongs to this rank's part of the weight."""
    share = parts.split.share(name)
    return whole if share is None else share.of(whole)


def with_product(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, layer: torch.nn.Module) -> torch.Tensor:
    """a: [rank, inputs], b: [outputs, rank]; the weight is [outputs, inputs], or the other way round."""
    rows, own = own_rows(weight), local_part(weight)
    product = a.T[rows] @ b.T if layer.fan_in_fan_out else b[rows] @ a
    total = own + product.mul_(layer.scaling[ADAPTER]).to(own.device)
    return laid_out_like(weight, total.to(own.dtype))
