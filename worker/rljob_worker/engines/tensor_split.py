"""Which parameters of a decoder are split where ranks share its matrices (see `tensor_parallel`), by name."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

BY_OUTPUTS = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "fc1"})
BY_INPUTS = frozenset({"o_proj", "dense", "down_proj", "fc2"})


@dataclass(frozen=True, slots=True)
class TensorSplit:
    """Which part of a layer's matrices is a rank's."""

    rank: int
    size: int
    """Ranks that share a matrix, at least 2."""

    def dim(self, name: str) -> int | None:
        """The dim in which the parameter of this name is split; None for one that every rank has whole."""
        module, _, kind = name.rpartition(".")
        leaf = module.rpartition(".")[2]
        if leaf in BY_OUTPUTS:
            return 0
        return 1 if leaf in BY_INPUTS and kind == "weight" else None

    def shape(self, name: str, own: torch.Size) -> tuple[int, ...]:
        """Of the whole parameter, from that of a rank's part."""
        split = self.dim(name)
        return tuple(size * self.size if dim == split else size for dim, size in enumerate(own))

    def place(self, name: str, own: torch.Size, rows: slice) -> tuple[slice, ...]:
        """Where in the whole parameter some rows of this rank's part are."""
        split, start = self.dim(name), self.rank
        if split == 0:
            return (slice(rows.start + start * own[0], rows.stop + start * own[0]),)
        return (rows,) if split is None else (rows, slice(start * own[1], (start + 1) * own[1]))


def split_of(group: dist.ProcessGroup | None) -> TensorSplit | None:
    """Of this rank in the ranks that share matrices, if it shares them with any."""
    return None if group is None else TensorSplit(group.rank(), group.size())
