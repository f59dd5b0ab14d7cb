"""Does a model have an architecture that the engines know, and the layers that its adapter is to stand beside?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rljob_api.memory.model_shape import FAMILIES
from rljob_api.v1alpha1 import ModelSpec
from rljob_api.vocabulary.problem import Problem, nearest
from rljob_worker.rehearsal.finding import Finding
from rljob_worker.rehearsal.inputs.weight_names import linear_layers, weight_shapes


def architecture_findings(model: ModelSpec, place: Path, at: str, config: Mapping[str, Any]) -> Iterator[Finding]:
    """at: where the model stands in the job.   config: of config.json."""
    kind = str(config["model_type"])
    if kind not in FAMILIES:
        message = f"the engines do not know models of type {kind}"
        yield Finding(Problem(f"{at}.path", model.path, message, f"Use one of {', '.join(sorted(FAMILIES))}."))
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "another number format")
        message = f"its weights are quantized by {method}"
        yield Finding(Problem(f"{at}.path", model.path, message, "Name the model that they were made of."))
    if model.adapter is not None and model.initialise == "Weights":
        yield from _unmatched(model.adapter.targets, linear_layers(weight_shapes(place)), f"{at}.adapter", model.path)


def _unmatched(targets: tuple[str, ...], there: set[str], at: str, path: str) -> Iterator[Finding]:
    """Nothing where no layer is known."""
    known = sorted({layer.rpartition(".")[2] for layer in there})
    for i, target in enumerate(targets if there else ()):
        if not any(_is_beside(target, layer) for layer in there):
            meant = nearest(target, known)
            fix = f"Did you mean {meant}? " * (meant is not None) + f"There are {', '.join(known)}."
            message = f"it matches no linear layer in the decoder of {path}"
            yield Finding(Problem(f"{at}.targets[{i}]", target, message, fix))


def _is_beside(target: str, layer: str) -> bool:
    """Names in files may lack what they begin with in the model."""
    return f".{layer}".endswith(f".{target}") or f".{target}".endswith(f".{layer}")
