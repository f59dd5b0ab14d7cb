"""An adapter out of a checkpoint as peft loads it: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

from pathlib import Path

import torch

from rljob_worker.engines.fsdp.checkpoint.sharded import Written, adapter_in
from rljob_worker.engines.fsdp.export.tensor_file import write_tensors
from rljob_worker.engines.models import ADAPTER, is_of_adapter
from rljob_worker.errors import StorageError
from rljob_worker.storage.paths import StoragePath


def export_adapter(checkpoint: StoragePath, directory: Path) -> None:
    """The adapter of an engine's checkpoint; the model it is for is not read. Raises StorageError."""
    adapter = adapter_in(checkpoint)
    assert adapter is not None, f"{checkpoint} holds a whole model"
    written = Written(checkpoint, adapter)
    result = {name: item for name, item in written.tensors.items() if is_of_adapter(name)}
    tensors = {name: torch.empty(item.size, dtype=item.properties.dtype) for name, item in result.items()}
    written.fill({"model": dict(tensors)})
    targets = sorted({name.partition(".lora_")[0].rpartition(".")[2] for name in tensors})
    named = {_name_in_peft(name): tensor for name, tensor in tensors.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in named.items()}
    (dtype,) = {tensor.dtype for tensor in tensors.values()}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_tensors(directory / "adapter_model.safetensors", shapes, dtype, named.items())
        adapter.peft_config(targets).save_pretrained(directory)
    except OSError as error:
        raise StorageError(f"export to {directory}: cannot be written: {error}") from error


def _name_in_peft(name: str) -> str:
    """`layer.lora_A.default.weight` is `base_model.model.layer.lora_A.weight` there."""
    return f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}"
