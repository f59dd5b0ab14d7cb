"""What checkpoints and streams of weights call the parameters of a model: by their own names, and experts one by one.

A layer with E experts of width I keeps them in two tensors, which files have in 3 E:

    experts.gate_up_proj [E, 2 I, hidden]    experts.0.gate_proj.weight, experts.0.up_proj.weight [I, hidden] and so on
    experts.down_proj    [E, hidden, I]      experts.0.down_proj.weight [hidden, I] and so on

Files of models that see have the two tensors, as they are published with each expert's matrices the other way round,
[E, hidden, 2 I] and [E, I, hidden]. Transformers writes them as they are in the model and reads both, by their shapes;
matrices that are square it takes as they are in the model, and so does this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rljob_worker.engines.parallel.shards import local_part, own_rows
from rljob_worker.engines.parallel.split import UNSPLIT, ParameterSlice, Split

Named = tuple[str, torch.Tensor]

_EXPERT_WEIGHTS = {".experts.gate_up_proj": ("gate_proj", "up_proj"), ".experts.down_proj": ("down_proj",)}
"""Matrices of one expert, one under the other, by how the parameter's name ends."""
_OF_MODELS_THAT_SEE = ".language_model."
"""In the names of what is in their decoder."""


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A tensor of a checkpoint, and what of it is on this rank."""

    name: str
    shape: tuple[int, ...]
    place: tuple[slice, ...]
    """Which of its rows, and columns where those are not all, are here."""
    own: torch.Tensor
    """They, in the parameter's memory."""
    rows: np.ndarray | None = None
    """int64: which rows of `own` they are, where other tensors have the rest of it."""

    @property
    def tensor(self) -> torch.Tensor:
        """What is on this rank; in the parameter's memory where that has nothing else."""
        return self.own if self.rows is None else self.own[self._index]

    @property
    def is_here(self) -> bool:
        """Whether this rank has anything of it."""
        return bool(self.own.numel() if self.rows is None else len(self.rows))

    def read(self, whole: Any) -> None:
        """Fill it from the whole tensor, or from what gives slices of that."""
        if not self.is_here:
            return
        if self.rows is None:
            self.own.copy_(whole[self.place])
        else:
            self.own[self._index] = whole[self.place].to(self.own)

    @property
    def turned(self) -> TensorPart | None:
        """The part where the matrices of experts are the other way round; None for any other tensor."""
        if len(self.shape) != 3:
            return None
        count, height, width = self.shape
        return replace(self, shape=(count, width, height), own=self.own.transpose(1, 2))

    @property
    def _index(self) -> torch.Tensor:
        return torch.from_numpy(self.rows).to(self.own.device)


TensorPartsOf = Callable[[str, torch.Tensor, Split], Iterator[TensorPart]]
"""What a checkpoint has of a parameter of this name, which may be sharded, and be this rank's part of a split one."""


def parts_of(name: str, parameter: torch.Tensor, split: Split = UNSPLIT) -> Iterator[TensorPart]:
    """What a checkpoint has of a parameter, which may be sharded, and be this rank's part of a split one, in order."""
    end, share = (
        next((expert_weight for expert_weight in _EXPERT_WEIGHTS if name.endswith(expert_weight)), None),
        split.share(name),
    )
    if end is None:
        rows, shape, own = own_rows(parameter), parameter.shape, local_part(parameter)
        if share is None:
            yield TensorPart(name, tuple(shape), (rows,), own)
        else:
            yield TensorPart(name, share.shape(shape), share.place(shape, rows), own)
        return
    if _OF_MODELS_THAT_SEE in f".{name}":
        yield _experts_together(name, parameter, share)
        return
    stem, weights = name.removesuffix(end) + ".experts", _EXPERT_WEIGHTS[end]
    local, here = local_part(parameter).detach(), own_rows(parameter)
    num_experts, height, width = parameter.shape
    first, everyone = (0, num_experts) if share is None else (share.rank * num_experts, share.size * num_experts)
    rows = height // len(weights)
    for expert in range(everyone):
        index_here = expert - first - here.start
        is_here = 0 <= index_here < here.stop - here.start
        for index, matrix in enumerate(weights):
            # experts are whole on one rank: FSDP cuts between them
            own = local[index_here, index * rows : (index + 1) * rows] if is_here else local[:0]
            yield TensorPart(
                f"{stem}.{expert}.{matrix}.weight", (rows, width), (slice(0, rows if is_here else 0),), own
            )


def _experts_together(name: str, parameter: torch.Tensor, share: ParameterSlice | None) -> TensorPart:
    num_experts, height, width = parameter.shape
    rows = own_rows(parameter)
    if share is not None:
        first = share.rank * num_experts
        rows, num_experts = slice(rows.start + first, rows.stop + first), num_experts * share.size
    part = TensorPart(name, (num_experts, height, width), (rows,), local_part(parameter).detach())
    return part if height == width or part.turned is None else part.turned


def checkpoint_tensors(whole: Iterable[Named], parts_of: TensorPartsOf = parts_of) -> Iterator[Named]:
    """Parameters that are whole on this rank, under the names of a checkpoint; one that has two names stays one."""
    return ((part.name, part.tensor) for name, tensor in whole for part in parts_of(name, tensor, UNSPLIT))
