"""Slices of tensors: the parts that `rljob_api.memory.weight_slices` says a rank keeps, cut out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from rljob_api.memory.weight_slices import KeptPart, WeightSlices

Named = tuple[str, torch.Tensor]


def cut(tensor: torch.Tensor, part: KeptPart) -> torch.Tensor:
    """A part of a whole tensor: a view, a copy where it is of several spans."""
    if part.spans is None:
        return tensor
    pieces = [tensor.narrow(part.axis, start, stop - start) for start, stop in part.spans]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, part.axis)


def own_slices(weights: Iterable[Named], slices: WeightSlices, rank: int) -> Iterator[Named]:
    """What a rank of a copy keeps of whole tensors."""
    return ((name, cut(tensor, slices.part(name, tensor.shape, rank))) for name, tensor in weights)
