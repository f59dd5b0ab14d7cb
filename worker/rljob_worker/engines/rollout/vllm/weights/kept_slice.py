"""`KeptSlice`: what a rank keeps of a tensor, in the place of the whole.

vLLM's loaders take whole tensors of a checkpoint and read of each what their rank keeps. They look at its shape, add
or take away axes and narrow it; once they have narrowed it to rows or columns that are here, they get a plain tensor.
A slice is no tensor itself, so that nothing else can be done with it: nothing is computed with numbers that are not
here, and of 36,000 tensors of experts none costs the calls through which torch takes those of a subclass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from rljob_api.memory.weight_slices import KeptPart


@dataclass(eq=False)
class KeptSlice:
    """A tensor of which some spans of one axis are here, as far as loaders look at one. They write on it which part of
    a parameter it is."""

    shape: tuple[int, ...]
    """Shape of the whole."""
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
        return KeptSlice(tuple(whole), part.axis, blocks)

    @property
    def dtype(self) -> torch.dtype:
        """As torch has it, like what follows."""
        return self.blocks[0][1].dtype

    @property
    def device(self) -> torch.device:
        return self.blocks[0][1].device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def is_floating_point(self) -> bool:
        return bool(self.dtype.is_floating_point)

    def narrow(self, dim: int, start: int, length: int) -> torch.Tensor | KeptSlice:
        """A plain tensor where all of it is here. Raises IndexError where nothing is."""
        dim %= self.ndim
        shape = (*self.shape[:dim], length, *self.shape[dim + 1 :])
        if dim != self.axis:
            return KeptSlice(shape, self.axis, [(at, block.narrow(dim, start, length)) for at, block in self.blocks])
        inside = []
        for at, block in self.blocks:
            first, stop = max(start, at), min(start + length, at + block.shape[dim])
            if first <= stop:
                inside.append((first - start, block.narrow(dim, first - at, stop - first)))
        for _, block in inside:
            if block.shape[dim] == length:
                return block
        if not inside:
            raise IndexError(f"{start} to {start + length} of an axis of {self.shape[dim]}: this rank keeps others")
        return KeptSlice(shape, dim, inside)

    def detach(self) -> KeptSlice:
        """Another one of the same memory, for a loader to write another part on."""
        return KeptSlice(self.shape, self.axis, self.blocks)

    def unsqueeze(self, dim: int) -> KeptSlice:
        """With an axis of one more."""
        dim %= self.ndim + 1
        shape, axis = (*self.shape[:dim], 1, *self.shape[dim:]), self.axis + (dim <= self.axis)
        return KeptSlice(shape, axis, [(at, block.unsqueeze(dim)) for at, block in self.blocks])

    def unbind(self, dim: int = 0) -> list[KeptSlice]:
        """Along an axis that is not cut."""
        assert dim != self.axis, "rows one by one, of which this rank keeps some"
        shape, axis = (*self.shape[:dim], *self.shape[dim + 1 :]), self.axis - (dim < self.axis)
        return [
            KeptSlice(shape, axis, [(at, block.select(dim, i)) for at, block in self.blocks])
            for i in range(self.shape[dim])
        ]


def kept_shapes(parameters: Mapping[str, torch.Tensor], parts: Mapping[str, KeptPart]) -> dict[str, torch.Tensor]:
    """Tensors without memory of the parts that a rank keeps, the same one where names are tied."""
    kept: dict[int, torch.Tensor] = {}
    for name, whole in parameters.items():
        shape = parts[name].shape(whole.shape)
        kept.setdefault(id(whole), torch.empty(shape, dtype=whole.dtype, device="meta"))
    return {name: kept[id(whole)] for name, whole in parameters.items()}
