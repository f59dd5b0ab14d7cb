"""LoRA: small matrices A and B beside linear layers of a frozen model, which then give W x + alpha / rank · B A x.

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, https://arxiv.org/abs/2106.09685. The layers are peft's;
their parameters stand beside those of the model, whose own get `base_layer` into their names.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from rljob_api.planning.plan import EnginePlan
from rljob_api.vocabulary.data_url import hub_model
from rljob_worker.engines.models.memory import parameters_without_memory
from rljob_worker.engines.models.sources.mirror import path_in_job
from rljob_worker.engines.models.vision import decoder_layers
from rljob_worker.engines.parallel.shards import local_part, own_rows
from rljob_worker.engines.parallel.split import UNSPLIT, Split
from rljob_worker.engines.router import routers
from rljob_worker.errors import InvalidJob

ADAPTER = "default"
"""What peft calls an adapter that has no other name."""

_HEAD = "value_head."
INSTALL = "pip install 'rljob[adapters]'"


@dataclass(frozen=True, slots=True)
class Adapter:
    """What makes an adapter another one."""

    base: str
    """Path of the model, as the job has it."""
    rank: int
    alpha: float
    targets: tuple[str, ...]
    """As the job has them; empty: every linear layer of the decoder."""

    @staticmethod
    def of(engine: EnginePlan) -> Adapter | None:
        """The adapter of an engine that trains one."""
        if engine.adapter is None:
            return None
        spec = engine.adapter
        alpha, targets = spec.alpha or 2.0 * spec.rank, tuple(sorted(set(spec.targets)))
        return Adapter(path_in_job(engine.path), spec.rank, alpha, targets)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def put_beside(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        """Give the model the adapter, and a critic's head, as `dtype`, and freeze the rest. Parameters have memory if
        those of the model have. Raises InvalidJob for targets that match nothing, naming what there is, and for models
        with experts."""
        if routers(model):
            raise InvalidJob(
                f"models[].adapter: adapters of models with experts are not built yet, and {self.base!r} has experts; "
                "leave adapter out"
            )
        peft = _peft()
        layers = self._matched(model)
        is_meta = any(parameter.is_meta for parameter in model.parameters())
        config = peft.LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            target_modules=list(layers),
            fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
        )
        with parameters_without_memory() if is_meta else nullcontext():
            peft.inject_adapter_in_model(config, model, adapter_name=ADAPTER)
        model.requires_grad_(False)
        for _, parameter in trained_parameters(model):
            parameter.data = parameter.data.to(dtype)
            parameter.requires_grad_(True)

    def _matched(self, model: torch.nn.Module) -> dict[str, torch.nn.Module]:
        """The layers to adapt, by name."""
        there = dict(_linear_layers(model))
        unmatched = [target for target in self.targets if not any(_names(target, name) for name in there)]
        if unmatched:
            known = ", ".join(sorted({name.rpartition(".")[2] for name in there}))
            raise InvalidJob(
                f"models[].adapter.targets: {', '.join(unmatched)} match no linear layer in the decoder of "
                f"{self.base!r}; there are {known}"
            )
        wanted = self.targets or tuple(there)
        return {name: layer for name, layer in there.items() if any(_names(target, name) for target in wanted)}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(raw: dict[str, Any]) -> Adapter:
        return Adapter(**{**raw, "targets": tuple(raw["targets"])})

    def differences(self, wanted: Adapter) -> Iterator[str]:
        """How this one is not `wanted`."""
        for field in fields(self):
            here, there = getattr(self, field.name), getattr(wanted, field.name)
            if here != there:
                yield f"{field.name} is {here!r} there and {there!r} in this job"

    def peft_config(self, layers: Sequence[str]) -> Any:
        """As peft loads it. layers: what the adapted ones are called, where the job takes all."""
        base = hub_model(self.base)
        return _peft().LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            target_modules=list(self.targets or layers),
            base_model_name_or_path=base.name,
            revision=base.revision,
            task_type="CAUSAL_LM",
            inference_mode=True,
        )


def draw_adapter(model: torch.nn.Module, seed: int, split: Split = UNSPLIT) -> None:
    """A uniform within 1 / sqrt(inputs), as peft draws it, and B zero: the model begins as it is without its adapter.
    A function of the seed and the layer's name; each rank fills its own rows, of its part where A is split."""
    for name, parameter in adapter_parameters(model):
        local = local_part(parameter.detach())
        if ".lora_B." in name:
            local.zero_()
            continue
        share = split.share(name)
        shape = parameter.shape if share is None else share.shape(parameter.shape)
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        bound = 1.0 / math.sqrt(shape[1])
        whole = torch.empty(shape).uniform_(-bound, bound, generator=generator)
        part = whole if share is None else share.of(whole)
        local.copy_(part[own_rows(parameter)])


def adapter_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, parameter) for name, parameter in model.named_parameters() if is_of_adapter(name))


def trained_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The adapter, and a critic's head: what is trained, and what checkpoints hold."""
    return ((name, p) for name, p in model.named_parameters() if is_of_adapter(name) or name.startswith(_HEAD))


def is_of_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def base_name(name: str) -> str:
    """What a parameter is called without an adapter beside it."""
    return name.replace(".base_layer.", ".")


@contextmanager
def adapter_off(model: torch.nn.Module) -> Iterator[None]:
    """The model computes as it does without its adapter: what that gives is multiplied by 0."""
    layers = list(adapted_layers(model))
    for layer in layers:
        layer.set_scale(ADAPTER, 0.0)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_scale(ADAPTER, 1.0)


def adapted_layers(model: torch.nn.Module) -> Iterator[Any]:
    """Layers of peft in the model; none when no adapter was put beside it."""
    if not any(True for _ in adapter_parameters(model)):
        return iter(())
    kind = _peft().tuners.lora.LoraLayer
    return (module for module in model.modules() if isinstance(module, kind))


def _linear_layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    inside = {module for layer in decoder_layers(model) for module in layer.modules()}
    return (
        (name, module)
        for name, module in model.named_modules()
        if module in inside and isinstance(module, torch.nn.Linear | Conv1D)
    )


def _names(target: str, layer: str) -> bool:
    return layer == target or layer.endswith(f".{target}")


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise InvalidJob(f"models[].adapter needs peft, which is not installed: {INSTALL}") from error
    return peft
