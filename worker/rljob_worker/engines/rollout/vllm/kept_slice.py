"""`KeptSlice`: what a rank keeps of a tensor, in the place of the whole.

vLLM's loaders take whole tensors of a checkpoint and read of each what their rank keeps. They look at its shape, add
or take away axes and narrow it; once they have narrowed it to rows or columns that are here, they get a plain tensor.
Whatever else they ask for is refused, so that nothing is computed with numbers that are not there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rljob_api.memory.weight_slices import KeptPart

_ASKED = frozenset(("__get__", "dim", "size", "numel", "__len__", "is_floating_point", "__repr__"))
"""Functions that say what a tensor is like."""


class KeptSlice(torch.Tensor):  # type: ignore[misc]
    """A tensor without memory, of which some spans of one axis are here."""

    axis: int
    blocks: list[tuple[int, torch.Tensor]]
    """Where each begins in the whole, ascending, and what is there."""

    @staticmethod
    def of(tensor: torch.Tensor, part: KeptPart, whole: Sequence[int]) -> KeptSlice:
        """tensor: the part of a tensor of shape `whole`."""
        assert part.spans is not None, "all of it is here"
        blocks, start = [], 0
        for begin, stop in part.spans:
            blocks.append((begin, tensor.narrow(part.axis, start, stop - begin)))
            start += stop - begin
        return _made(whole, part.axis, blocks)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__name__
        if name in _ASKED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if name not in _VIEWS:
            raise NotImplementedError(f"{name} of a tensor of which this rank keeps a slice")
        return _VIEWS[name](*args, **(kwargs or {}))


def _made(whole: Sequence[int], axis: int, blocks: list[tuple[int, torch.Tensor]]) -> KeptSlice:
    made: KeptSlice = torch.empty(tuple(whole), dtype=blocks[0][1].dtype, device="meta").as_subclass(KeptSlice)
    made.axis, made.blocks = axis, blocks
    return made


def _narrowed(kept: KeptSlice, dim: int, start: int, length: int) -> torch.Tensor:
    """A plain tensor where all of it is here."""
    dim %= kept.dim()
    if dim != kept.axis:
        shape = (*kept.shape[:dim], length, *kept.shape[dim + 1 :])
        return _made(shape, kept.axis, [(at, block.narrow(dim, start, length)) for at, block in kept.blocks])
    inside = []
    for at, block in kept.blocks:
        first, stop = max(start, at), min(start + length, at + block.shape[dim])
        if first <= stop:
            inside.append((first - start, block.narrow(dim, first - at, stop - first)))
    whole = [block for _, block in inside if block.shape[dim] == length]
    if whole:
        return whole[0]
    if not inside:
        raise IndexError(f"{start} to {start + length} of an axis of {kept.shape[dim]}: this rank keeps others")
    return _made((*kept.shape[:dim], length, *kept.shape[dim + 1 :]), dim, inside)


def _unsqueezed(kept: KeptSlice, dim: int) -> KeptSlice:
    dim %= kept.dim() + 1
    shape, axis = (*kept.shape[:dim], 1, *kept.shape[dim:]), kept.axis + (dim <= kept.axis)
    return _made(shape, axis, [(at, block.unsqueeze(dim)) for at, block in kept.blocks])


def _unbound(kept: KeptSlice, dim: int = 0) -> list[KeptSlice]:
    if dim == kept.axis:
        raise NotImplementedError("rows one by one of a tensor of which this rank keeps a slice")
    shape, axis = (*kept.shape[:dim], *kept.shape[dim + 1 :]), kept.axis - (dim < kept.axis)
    return [
        _made(shape, axis, [(at, block.select(dim, i)) for at, block in kept.blocks]) for i in range(kept.shape[dim])
    ]


_VIEWS: dict[str, Callable[..., Any]] = {"narrow": _narrowed, "unsqueeze": _unsqueezed, "unbind": _unbound}
"""Functions that look at a part of a tensor."""
