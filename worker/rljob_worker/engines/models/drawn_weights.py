"""Weights of a model that is trained from nothing: each tensor is a function of the job's seed and of its own name.

Which distribution a tensor has says transformers, whose rules for a model are watched as they are applied to parameters
without memory. It is then drawn by itself, under the name that a checkpoint has for it, so that neither ranks nor the
library that computes its layer make it another one; a rank keeps its part, and has one whole tensor at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from rljob_worker.engines.models.adapter import base_name, is_of_adapter
from rljob_worker.engines.models.checkpoint_names import Named, TensorPartsOf, parts_of
from rljob_worker.engines.models.value_model import ValueModel, backbone_of, clear_head
from rljob_worker.engines.parallel.split import UNSPLIT, Split

Draw = Callable[[torch.Tensor], object]
"""Fills a tensor in place from torch's random numbers, each element like every other."""


@dataclass(frozen=True, slots=True)
class DrawnWeights:
    """The random weights of one model, as every rank draws them."""

    seed: int
    draws: Mapping[str, Draw]
    """By the name of a tensor, as a backbone's files have it: a critic begins with the weights of its policy."""

    @staticmethod
    def of(model: PreTrainedModel | ValueModel, seed: int) -> DrawnWeights:
        """model: without memory, its layers transformers' own."""
        backbone = backbone_of(model)
        with _Watched() as watched, torch.no_grad():
            backbone.apply(backbone._init_weights)
        return DrawnWeights(
            seed,
            {
                _own_name(part.name, backbone): watched.draws[id(parameter)]
                for name, parameter in backbone.named_parameters()
                for part in parts_of(name, parameter)
            },
        )

    def fill(
        self,
        model: torch.nn.Module,
        split: Split = UNSPLIT,
        parts_of: TensorPartsOf = parts_of,
        *,
        is_pipeline_stage: bool = False,
    ) -> None:
        """Draw this rank's part of every parameter but those of an adapter; a critic's head is zero. See
        `WeightFiles.fill`."""
        backbone = backbone_of(model)
        self._fill(backbone, backbone.named_parameters(), split, parts_of)
        if isinstance(model, ValueModel):
            clear_head(model)

    def fill_tensors(self, model: PreTrainedModel, room: Mapping[str, torch.Tensor], parts_of: TensorPartsOf) -> None:
        """Whole tensors of the shapes of some parameters, by name."""
        self._fill(model, room.items(), UNSPLIT, parts_of)

    def drawn(self, model: PreTrainedModel, parameters: Mapping[str, torch.Tensor]) -> dict[str, list[Named]]:
        """What some parameters of the model are made of, by name: whole tensors of a checkpoint, in their precision."""
        with torch.random.fork_rng(devices=[]):
            return {
                name: [
                    (part.name, self._drawn(_own_name(part.name, model), part.shape).to(item.dtype))
                    for part in parts_of(name, item)
                ]
                for name, item in parameters.items()
            }

    def _fill(
        self, model: PreTrainedModel, named: Iterable[tuple[str, torch.Tensor]], split: Split, parts_of: TensorPartsOf
    ) -> None:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for name, tensor in named:
                for part in () if is_of_adapter(name) else parts_of(base_name(name), tensor, split):
                    if part.is_here:
                        part.read(self._drawn(_own_name(part.name, model), part.shape))

    def _drawn(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """In Float32, whatever it is kept in."""
        torch.default_generator.manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        whole = torch.empty(shape, dtype=torch.float32)
        self.draws[name](whole)
        return whole


class _Watched(TorchFunctionMode):  # type: ignore[misc]
    """Sees what parameters are filled with; of several fillings of one the last counts. What fills a part of one, such
    as the row of a word that pads, is not seen: that row is drawn like others."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: dict[int, Draw] = {}

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        given = dict(options or {})
        # torch.nn.init's own functions come with all by name, methods of a tensor with it in the first place
        filled, rest = (arguments[0], arguments[1:]) if arguments else (given.pop("tensor", None), ())
        name = function.__name__
        if name.endswith("_") and not name.endswith("__") and isinstance(filled, torch.nn.Parameter):
            self.draws[id(filled)] = lambda tensor: function(tensor, *rest, **given)
        return function(*arguments, **(options or {}))


def _own_name(name: str, model: PreTrainedModel) -> str:
    return name.removeprefix(f"{model.base_model_prefix}.")
