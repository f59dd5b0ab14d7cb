"""A checkpoint as a Hugging Face directory, by one process that has at most a bucket of the model in memory."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from rljob_api.memory.sizes import BUCKET_BYTES
from rljob_worker.engines.fsdp.checkpoint.sharded import Written
from rljob_worker.engines.fsdp.export.tensor_file import write_tensors
from rljob_worker.engines.fsdp.export.trained_tensors import Fill, TrainedTensors
from rljob_worker.engines.fsdp.layers import TRANSFORMERS, Layers
from rljob_worker.engines.fsdp.tensors.buckets import Named, Scattered, buckets
from rljob_worker.engines.fsdp.tensors.parts import Parts
from rljob_worker.engines.models import (
    VALUE_HEAD,
    Adapter,
    DrawnWeights,
    TensorPartsOf,
    ValueModel,
    WeightFiles,
    base_name,
    checkpoint_tensors,
    trained_parameters,
)
from rljob_worker.engines.parallel.mesh import alone
from rljob_worker.engines.parallel.split import UNSPLIT
from rljob_worker.errors import StorageError
from rljob_worker.storage.paths import StoragePath
from rljob_worker.weight_index import INDEX

log = logging.getLogger(__name__)

FILE_BYTES = 1 << 30


def export_directory(
    model: torch.nn.Module,
    checkpoint: StoragePath,
    directory: Path,
    dtype: torch.dtype,
    *,
    adapter: Adapter | None = None,
    base: WeightFiles | DrawnWeights | None = None,
    layers: Layers = TRANSFORMERS,
    file_bytes: int = FILE_BYTES,
    bucket_bytes: int = BUCKET_BYTES,
) -> None:
    """Write config.json, and weights as `dtype` in safetensors files of up to `file_bytes`; a critic's head goes beside
    its backbone.

    model: as it was trained, without memory; it is taken over. adapter: what was trained in place of it, which is
    merged; base: where the model itself is. layers: who computed those of the decoder. bucket_bytes: of the weights
    that are in memory at once; a tensor that is larger goes alone. Raises StorageError.
    """
    if adapter is not None:
        adapter.put_beside(model, torch.promote_types(dtype, torch.float32))
    parts_of = layers.spread(model, Parts.of(alone(torch.device("cpu")))).parts_of
    written = Written(checkpoint, adapter)
    kept = dict(model.named_parameters() if adapter is None else trained_parameters(model))
    written.require_model(kept)
    backbone, prefix = (model.backbone, "backbone.") if isinstance(model, ValueModel) else (model, "")
    assert isinstance(backbone, PreTrainedModel), "what is exported is a model of transformers"
    fill = _filling(base, backbone, parts_of, is_policy=not prefix)
    tensors_of = partial(TrainedTensors, written=written, kept=kept, dtype=dtype, bucket_bytes=bucket_bytes)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_files(tensors_of(backbone, prefix, base=fill), directory, parts_of, file_bytes)
        if isinstance(model, ValueModel):
            head = tensors_of(model.value_head, "value_head.")
            _write_file(head, list(head.parameters()), directory / VALUE_HEAD, parts_of)
        _write_config(backbone, directory, dtype)
    except OSError as error:  # a disk that fills up while weights are written
        raise StorageError(f"export to {directory}: cannot be written: {error}") from error


def _filling(
    base: WeightFiles | DrawnWeights | None, backbone: PreTrainedModel, parts_of: TensorPartsOf, *, is_policy: bool
) -> Fill | None:
    """A tensor is read, or drawn, as it is needed."""
    if isinstance(base, DrawnWeights):
        return partial(base.fill_tensors, backbone, parts_of=parts_of)
    return None if base is None else base.matched(backbone, parts_of=parts_of, is_policy=is_policy).fill


def _write_files(tensors: TrainedTensors, directory: Path, parts_of: TensorPartsOf, file_bytes: int) -> None:
    """Write consecutive tensors to files, and an index where there are several files."""
    own = (Scattered(name, parameter) for name, parameter in tensors.parameters())
    files = list(buckets(own, file_bytes, tensors.dtype))
    names = _file_names(len(files))
    places: dict[str, str] = {}
    for file, name in zip(files, names, strict=True):
        log.info("  %s", name)  # a large model takes minutes
        held = [(tensor.name, tensor.here) for tensor in file.tensors]
        shapes = _write_file(tensors, held, directory / name, parts_of)
        places |= dict.fromkeys(shapes, name)
    if len(files) > 1:
        size = sum(tensor.num_elements for file in files for tensor in file.tensors) * tensors.dtype.itemsize
        index = {"metadata": {"total_size": size}, "weight_map": places}
        (directory / INDEX).write_text(json.dumps(index, indent=2))


def _write_file(tensors: TrainedTensors, held: list[Named], path: Path, parts_of: TensorPartsOf) -> list[str]:
    """One file of some parameters; what it calls their tensors."""
    shapes = {part.name: part.shape for name, item in held for part in parts_of(base_name(name), item, UNSPLIT)}
    whole = ((base_name(name), tensor) for name, tensor in tensors.read(held))
    write_tensors(path, shapes, tensors.dtype, checkpoint_tensors(whole, parts_of))
    return list(shapes)


def _file_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _write_config(model: PreTrainedModel, directory: Path, dtype: torch.dtype) -> None:
    model.config.architectures = [type(model).__name__]
    model.config.dtype = dtype
    model.config.save_pretrained(directory)
