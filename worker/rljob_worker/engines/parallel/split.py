"""Which parameters of a decoder ranks split among them, and which part of each is a rank's: by name.

Matrices of a layer where ranks share them (see `tensor`; those of Megatron-core begin with `linear_`), its
experts where those are spread (see `expert`). Of an adapter B A beside a matrix, B where that is split by
outputs and A where by inputs. All other parameters each rank has whole, as far as FSDP leaves them so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

BY_OUTPUTS = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "fc1", "linear_qkv", "linear_fc1"})
BY_INPUTS = frozenset({"o_proj", "dense", "down_proj", "fc2", "linear_proj", "linear_fc2"})
EXPERTS = "experts"
"""The module that has all experts of a layer, one under the other, in each of its parameters."""
TOWERS = frozenset({"visual", "vision_backbone"})
"""The module of a model that sees which makes features of pictures: each rank has it whole."""


@dataclass(frozen=True, slots=True)
class ParameterSlice:
    """One rank's part of a parameter: of `size` equal ones along `dim`, the one at `rank` of this axis of the mesh."""

    axis: Literal["tp", "ep"]
    dim: int
    rank: int
    size: int

    def shape(self, own: torch.Size) -> tuple[int, ...]:
        """The shape of the whole parameter, from that of a part."""
        return tuple(length * self.size if dim == self.dim else length for dim, length in enumerate(own))

    def place(self, own: torch.Size, rows: slice) -> tuple[slice, ...]:
        """Where in the whole parameter some rows of this part are."""
        start = self.rank * own[self.dim]
        if self.dim == 0:
            return (slice(rows.start + start, rows.stop + start),)
        return (rows, slice(start, start + own[1]))

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """This part of the parameter, sharing its memory."""
        size, left = divmod(whole.shape[self.dim], self.size)
        assert left == 0, f"{tuple(whole.shape)} does not split over {self.size} ranks"
        return whole.narrow(self.dim, self.rank * size, size)


@dataclass(frozen=True, slots=True)
class Split:
    """This rank's place, and how many ranks there are, where ranks split something."""

    tensor_group: tuple[int, int] = (0, 1)
    experts: tuple[int, int] = (0, 1)

    @staticmethod
    def over(tensor_group: dist.ProcessGroup | None, experts: dist.ProcessGroup | None = None) -> Split:
        return Split(_place(tensor_group), _place(experts))

    def share(self, name: str) -> ParameterSlice | None:
        """How the parameter of this name is split; None for one that is not."""
        module, _, kind = name.replace(".base_layer.", ".").rpartition(".")
        module, _, side = module.partition(".lora_")  # "A" or "B", and the adapter's name, or nothing
        *path, leaf = module.split(".")
        if not TOWERS.isdisjoint(path):
            return None
        if leaf == EXPERTS:
            return _share("ep", 0, self.experts)
        if leaf in BY_OUTPUTS and not side.startswith("A"):
            return _share("tp", 0, self.tensor_group)
        if leaf in BY_INPUTS and kind == "weight" and not side.startswith("B"):
            return _share("tp", 1, self.tensor_group)
        return None


UNSPLIT = Split()
"""Split of a rank that has all parameters whole."""


def may_split_columns(name: str) -> bool:
    """Whether ranks that split tensor_group have columns of this parameter each."""
    share = Split(tensor_group=(0, 2)).share(name)
    return share is not None and share.dim == 1


def keep_parts(module: torch.nn.Module, name: str, split: Split) -> None:
    """Leave a module of this name its part of every parameter, with memory or without."""
    for kind, whole in list(module.named_parameters(recurse=False)):
        share = split.share(f"{name}.{kind}")
        if share is not None:
            own = share.of(whole.detach()).clone()
            setattr(module, kind, torch.nn.Parameter(own, requires_grad=whole.requires_grad))


def _place(group: dist.ProcessGroup | None) -> tuple[int, int]:
    return (0, 1) if group is None else (group.rank(), group.size())


def _share(axis: Literal["tp", "ep"], dim: int, place: tuple[int, int]) -> ParameterSlice | None:
    return ParameterSlice(axis, dim, *place) if place[1] > 1 else None
