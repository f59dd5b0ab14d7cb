"""A policy that is read from its files layer by layer: a process never has more than one of them in memory of its own,
and may compute with it on the way.

What is outside of the layers (embedding, last layer, norms, a vision tower) comes first, then each layer. On a disk,
tensors are the pages of files, which the processes of a machine share and the kernel takes back when it needs room;
memory of its own has what is put together of several tensors (the experts of a layer), what a process computes with in
another precision than that of the files, what comes from an object store, and what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from transformers import PreTrainedModel

from rljob_worker.engines.models.building import empty_policy
from rljob_worker.engines.models.checkpoint_names import Named, parts_of
from rljob_worker.engines.models.drawn_weights import DrawnWeights
from rljob_worker.engines.models.vision import decoder_layers
from rljob_worker.engines.models.weight_files import WeightFiles

Result = TypeVar("Result")
Read = Callable[[Mapping[str, torch.Tensor]], dict[str, list[Named]]]
"""From some parameters to the tensors of a checkpoint that each is made of."""


class PolicyByLayers:
    """model: its parameters have no memory, but for the layer that computes."""

    def __init__(self, model: PreTrainedModel, read: Read) -> None:
        self.model = model
        self._read = read

    @staticmethod
    def of_files(path: str, dtype: torch.dtype) -> PolicyByLayers:
        """Raises InvalidJob and BadData."""
        files = WeightFiles.find(path)
        model = empty_policy(path, dtype)
        return PolicyByLayers(model, files.matched(model).mapped)

    @staticmethod
    def random(path: str, dtype: torch.dtype, seed: int) -> PolicyByLayers:
        """The weights of `random_policy`."""
        model = empty_policy(path, dtype)
        return PolicyByLayers(model, partial(DrawnWeights.of(model, seed).drawn, model))

    def tensors(
        self, beside: LayeredPass[Any] | None = None, *, layer_is_read: Callable[[], object] = lambda: None
    ) -> Iterator[Named]:
        """All, under the names of a checkpoint, each good for as long as it is kept. beside: a forward pass that is
        made on the way. layer_is_read: called behind each layer. Raises BadData."""
        outside, *layers = self._units()
        read = self._read(outside)
        yield from _all(read)
        with self._with_memory(outside, read, is_used=beside is not None):
            for number, layer in enumerate(layers):
                read = self._read(layer)
                yield from _all(read)
                if beside is not None:
                    with self._with_memory(layer, read):
                        beside.advance(self.model, number)
                del read
                layer_is_read()

    def _units(self) -> Iterator[dict[str, torch.nn.Parameter]]:
        """Parameters that are read together, by name."""
        layers = [dict(layer.named_parameters()) for layer in decoder_layers(self.model)]
        names = {id(item): name for name, item in self.model.named_parameters()}
        inside = {id(item) for layer in layers for item in layer.values()}
        yield {name: item for name, item in self.model.named_parameters() if id(item) not in inside}
        for layer in layers:
            yield {names[id(item)]: item for item in layer.values()}

    @contextmanager
    def _with_memory(
        self, unit: Mapping[str, torch.nn.Parameter], read: dict[str, list[Named]], *, is_used: bool = True
    ) -> Iterator[None]:
        """A block in which some parameters have their weights, where they are used. Takes what was read of them."""
        here = {name: _put_together(name, item, read[name]) for name, item in unit.items()} if is_used else {}
        read.clear()
        first = {id(item): name for name, item in unit.items()}
        named = [(name, first.get(id(item))) for name, item in self.model.named_parameters(remove_duplicate=False)]
        places = [(name, other) for name, other in named if other in here]
        for name, other in places:
            _put(self.model, name, here[other])
        try:
            yield
        finally:
            for name, other in places:
                _put(self.model, name, unit[other])


class LayeredPass(Generic[Result]):
    """One forward pass, a layer at a time: each call runs the model's own, in which earlier layers let hidden states
    pass as they are, and ends before the next one. So masks, positions and whatever else the model does between layers
    are its own.

    work: makes the pass, and gives what is wanted of it. It is called once for each layer, and does the same each time.
    """

    def __init__(self, work: Callable[[PreTrainedModel], Result]) -> None:
        self._work = work
        self._hidden: torch.Tensor | None = None
        self.result: Result | None = None
        """None before the last layer has computed."""

    def advance(self, model: PreTrainedModel, layer: int) -> None:
        """With the weights of what is outside of the layers and of one of these, the next."""
        layers = decoder_layers(model)
        for number, module in enumerate(layers):
            module.forward = partial(self._forward, number - layer, module.forward)
        try:
            self.result = self._work(model)
        except _NextLayer:
            pass
        finally:
            for module in layers:
                del module.forward

    def _forward(self, ahead: int, own: Any, hidden: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        """ahead: how many layers the module is behind the one that computes."""
        if ahead > 0:
            self._hidden = hidden
            raise _NextLayer
        if ahead < 0:
            return hidden
        return own(hidden if self._hidden is None else self._hidden, *arguments, **options)


class _NextLayer(Exception):
    """Hidden states have come to a layer without weights."""


def _all(read: Mapping[str, list[Named]]) -> Iterator[Named]:
    for made_of in read.values():
        yield from made_of


def _put_together(name: str, parameter: torch.Tensor, made_of: list[Named]) -> torch.nn.Parameter:
    """A parameter's weights: a tensor itself where it is made of that, in the same precision."""
    tensors = [tensor for _, tensor in made_of]
    whole = tensors[0]
    if len(tensors) > 1 or (whole.shape, whole.dtype) != (parameter.shape, parameter.dtype):
        whole = torch.empty(parameter.shape, dtype=parameter.dtype)
        for part, tensor in zip(parts_of(name, whole), tensors, strict=True):
            part.read(tensor)
    return torch.nn.Parameter(whole, requires_grad=False)


def _put(model: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
    module, _, kind = name.rpartition(".")
    setattr(model.get_submodule(module), kind, parameter)
