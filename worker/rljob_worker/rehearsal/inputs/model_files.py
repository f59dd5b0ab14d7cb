"""Are the files of a model there that a run reads, and do they say what the engines know?

They know its architecture, its weights are not quantized, and it has the layers that its adapter is to stand beside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rljob_api.memory.model_shape import ACTION_MODELS, FAMILIES, parse_shape
from rljob_api.memory.vision_shape import DECODERS
from rljob_api.v1alpha1 import ModelSpec, RewardSpec, RLJobSpec
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_api.vocabulary.problem import Problem, nearest
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.rehearsal.finding import Finding, finding_of
from rljob_worker.rehearsal.inputs.config_fit import misfit
from rljob_worker.rehearsal.inputs.remote_paths import model_paths
from rljob_worker.rehearsal.inputs.tokenizer import json_object
from rljob_worker.rehearsal.inputs.weight_names import Shapes, indexed_files, linear_layers, weight_shapes
from rljob_worker.weight_index import INDEX

UNSAID_LABELS = ("0", "1")
"""Outputs of a classifier whose config names none, in transformers."""
_RUNS = ("run.json", "manifest.json", "checkpoints")
"""A directory with one of these is a run's, or a checkpoint's, whose model another room looks for."""


def models_here(spec: RLJobSpec, folder: Path) -> Iterator[tuple[str, Path]]:
    """The path in the job, and the directory that it is here."""
    for _, path in model_paths(spec):
        place = folder / Path(path).expanduser()
        if place.is_dir():
            yield path, place


def misplaced(spec: RLJobSpec, folder: Path) -> Iterator[Finding]:
    """Models whose path is a file here, and so neither a model nor a name of the hub."""
    for field, path in model_paths(spec):
        if (folder / Path(path).expanduser()).is_file():
            message, fix = "it is a file, and a model is a directory", "Name the directory of a Hugging Face model."
            yield Finding(Problem(field, path, message, fix))


def model_findings(spec: RLJobSpec, places: Mapping[str, Path]) -> Iterator[Finding]:
    """Findings on every model that has a directory. places: by path in the job."""
    graders = {reward.model: reward for reward in spec.rewards if reward.model is not None}
    for i, model in enumerate(spec.models):
        place, at = places.get(model.path), f"spec.models[{i}]"
        if place is not None and not any((place / name).exists() for name in _RUNS):
            try:
                yield from _of_directory(model, place, at)
                if model.name in graders:
                    yield from _of_classifier(place, f"{at}.path", model.path, graders[model.name])
            except (InvalidJob, BadData) as error:
                yield finding_of(f"{at}.path", error)
    for field, path in model_paths(spec):
        if field.startswith("spec.services") and path in places:
            yield from _no_config(places[path], field, path)


def _no_config(place: Path, field: str, path: str) -> Iterator[Finding]:
    if not (place / "config.json").is_file():
        there = ", ".join(sorted(path.name for path in place.iterdir())[:20]) or "nothing"
        message = f"no model is there: {place} has no config.json, and holds {there}"
        yield Finding(Problem(field, path, message, "Name the directory of a Hugging Face model."))


def _of_directory(model: ModelSpec, place: Path, at: str) -> Iterator[Finding]:
    path, result = f"{at}.path", model.path
    if problems := list(_no_config(place, path, result)):
        yield from problems
        return
    config = json_object(place / "config.json")
    if config.get("model_type"):
        yield from architecture_findings(model, at, config)
    else:
        yield Finding(Problem(path, result, f"{place}/config.json names no model_type", "Fetch the model again."))
    if model.initialise == "Random":
        return
    weights, shape = weight_shapes(place), parse_shape(config)
    yield from adapter_findings(model, at, weights)
    if shape is not None and (difference := misfit(shape, weights)):
        fix = "config.json is of another model than the weights: fetch both again."
        yield Finding(Problem(path, result, difference, fix), ExitCode.BAD_DATA)
    parts = set(indexed_files(place).values())
    if not parts and not any(place.glob("*.safetensors")):
        message = f"{place} has no weights as safetensors files"
        fix = "Save the model with safetensors, or write initialise: Random to draw its weights."
        yield Finding(Problem(path, result, message, fix))
    if missing := sorted(part for part in parts if not (place / part).is_file()):
        message = f"{INDEX} lists {len(parts)} files, and {', '.join(missing[:5])} of them cannot be found"
        yield Finding(Problem(path, result, message, "Fetch the model again."), ExitCode.BAD_DATA)


def _of_classifier(place: Path, path: str, result: str, reward: RewardSpec) -> Iterator[Finding]:
    """A model of a reward has one output, and a tokenizer of its own."""
    if not (place / "config.json").is_file():
        return
    num_outputs = len(json_object(place / "config.json").get("id2label") or UNSAID_LABELS)
    if num_outputs != 1:
        message = f"it has {num_outputs} outputs, and the model of reward {reward.name} has 1"
        yield Finding(Problem(path, result, message, "Name a sequence classifier that was trained with one."))
    if "tokenizer" not in reward.options and not (place / "tokenizer_config.json").is_file():
        message = f"{place} has no tokenizer, with which reward {reward.name} writes its texts"
        yield Finding(Problem(path, result, message, "Put it there, or name one in the reward's options.tokenizer."))


def architecture_findings(model: ModelSpec, at: str, config: Mapping[str, Any]) -> Iterator[Finding]:
    """at: where the model stands in the job.   config: of config.json."""
    kind = str(config["model_type"])
    known = sorted([*FAMILIES, *DECODERS, *ACTION_MODELS])
    if kind not in known:
        message = f"the engines do not know models of type {kind}"
        yield Finding(Problem(f"{at}.path", model.path, message, f"Use one of {', '.join(known)}."))
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
