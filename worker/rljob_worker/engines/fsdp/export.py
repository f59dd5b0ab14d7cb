"""A model as a Hugging Face directory, written by all ranks side by side.

Every file is a bucket of tensors that is gathered on one rank, which writes it: no rank holds the whole model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from rljob_worker.engines.fsdp.buckets import Bucket, Named, buckets
from rljob_worker.engines.fsdp.collectives import wait_for_all
from rljob_worker.engines.fsdp.full_tensors import tensors_at
from rljob_worker.engines.fsdp.merged import merged_tensors, own_tensors
from rljob_worker.engines.fsdp.parts import Parts
from rljob_worker.engines.models import VALUE_HEAD, PartsOf, ValueModel, checkpoint_tensors, parts_of
from rljob_worker.errors import StorageError

FILE_BYTES = 1 << 30


def export(
    model: torch.nn.Module,
    directory: Path,
    parts: Parts,
    dtype: torch.dtype,
    parts_of: PartsOf = parts_of,
    *,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Write config.json, and weights as `dtype` in safetensors files of up to `file_bytes`; a critic's head goes beside
    its backbone. Collective. Raises StorageError."""
    directory.mkdir(parents=True, exist_ok=True)
    backbone = model.backbone if isinstance(model, ValueModel) else model
    assert isinstance(backbone, PreTrainedModel), "what is exported is a model of transformers"
    try:
        _write_weights(backbone, directory, parts, dtype, parts_of, file_bytes)
        tensors: dict[str, torch.Tensor] = {}
        if isinstance(model, ValueModel):
            assert parts.stages is None, "a critic in pipeline stages is exported by one process, from its checkpoint"
            head = tensors_at(model.value_head.named_parameters(), parts, [0], dtype)
            tensors = {name: tensor.cpu() for name, tensor in head}
        if parts.rank == 0:
            if tensors:
                save_tensors(tensors, directory / VALUE_HEAD)
            _write_config(backbone, directory, dtype)
    except (OSError, SafetensorError) as error:  # a disk that fills up while weights are written
        raise StorageError(f"export to {directory}: cannot be written: {error}") from error
    wait_for_all(parts.everyone)


def _write_weights(
    model: PreTrainedModel, directory: Path, parts: Parts, dtype: torch.dtype, parts_of: PartsOf, file_bytes: int
) -> None:
    """This rank's files, and on the first rank the index of several."""
    scattered = list(parts.everything(own_tensors(model)))
    files = list(buckets(scattered, file_bytes, dtype))
    names = _file_names(len(files))
    rank, ranks = parts.rank, parts.num_ranks
    merged = merged_tensors(model, parts)
    tensors = checkpoint_tensors(tensors_at(merged, parts, range(ranks), dtype, file_bytes), parts_of)
    held = [list(_tensors_of(file, parts, parts_of)) for file in files]
    for tensors_held, name in list(zip(held, names, strict=True))[rank::ranks]:
        save_tensors(_next_of(tensors, tensors_held), directory / name)
    assert next(tensors, None) is None, "tensors beyond those of the files"
    if rank == 0 and len(files) > 1:
        places = {tensor: name for tensors_held, name in zip(held, names, strict=True) for tensor in tensors_held}
        size = sum(each.num_elements for each in scattered) * dtype.itemsize
        index = {"metadata": {"total_size": size}, "weight_map": places}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """For whoever may read the directory: safetensors writes for the owner alone."""
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(path.parent.stat().st_mode & 0o666)


def _file_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _tensors_of(bucket: Bucket, parts: Parts, parts_of: PartsOf) -> Iterator[str]:
    """What a file calls them."""
    return (part.name for each in bucket.tensors for part in parts_of(each.name, each.here, parts.split))


def _next_of(tensors: Iterator[Named], names: Iterable[str]) -> dict[str, torch.Tensor]:
    """The tensors of one file. They are good until one of the next bucket is asked for."""
    found = {}
    for expected in names:
        name, tensor = next(tensors)
        assert name == expected, f"{name} in place of {expected}"
        found[name] = tensor.contiguous()
    return found


def _write_config(model: PreTrainedModel, directory: Path, dtype: torch.dtype) -> None:
    kinds = type(model).__mro__
    model.config.architectures = [next(kind.__name__ for kind in kinds if not issubclass(kind, FSDPModule))]
    model.config.dtype = dtype
    model.config.save_pretrained(directory)
