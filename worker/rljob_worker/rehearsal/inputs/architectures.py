"""Does a model have an architecture that the engines know, and the layers that its adapter is to stand beside?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.memory.model_shape import FAMILIES
from rljob_api.v1alpha1 import ModelSpec
from rljob_api.vocabulary.problem import Problem, nearest
from rljob_worker.rehearsal.finding import Finding
from rljob_worker.rehearsal.inputs.weight_names import Shapes, linear_layers


def architecture_findings(model: ModelSpec, at: str, config: Mapping[str, Any]) -> Iterator[Finding]:
    """at: where the model stands in the job.   config: of config.json."""
    kind = str(config["model_type"])
    if kind not in FAMILIES:
        message = f"the engines do not know models of type {kind}"
        yield Finding(Problem(f"{at}.path", model.path, message, f"Use one of {', '.join(sorted(FAMILIES))}."))
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "another number format")
        message = f"its weights are quantized by {method}"
        yield Finding(Problem(f"{at}.path", model.path, message, "Name the model that they were made of."))


def adapter_findings(model: ModelSpec, at: str, weights: Shapes) -> Iterator[Finding]:
    """Nothing where no layer is known."""
    targets, there = () if model.adapter is None else model.adapter.targets, linear_layers(weights)
    known = sorted({layer.rpartition(".")[2] for layer in there})
    for i, target in enumerate(targets if there else ()):
        if not any(_is_beside(target, layer) for layer in there):
            meant = nearest(target, known)
            fix = f"Did you mean {meant}? " * (meant is not None) + f"There are {', '.join(known)}."
            message = f"it matches no linear layer in the decoder of {model.path}"
            yield Finding(Problem(f"{at}.adapter.targets[{i}]", target, message, fix))


def _is_beside(target: str, layer: str) -> bool:
    """Names in files may lack what they begin with in the model."""
    return f".{layer}".endswith(f".{target}") or f".{target}".endswith(f".{layer}")
