"""An adapter out of a checkpoint as peft loads it: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError

from rljob_worker.engines.fsdp.checkpoint import adapter_in, read
from rljob_worker.engines.fsdp.export import save_tensors
from rljob_worker.engines.fsdp.place_files import PlaceReader
from rljob_worker.engines.models import ADAPTER, is_of_adapter
from rljob_worker.errors import StorageError
from rljob_worker.storage.place import Place

_STATE = "model."
"""Before the names of weights in a checkpoint, where those of the optimizer have another prefix."""


def export_adapter(checkpoint: Place, directory: Path) -> None:
    """The adapter of an engine's checkpoint; the model it is for is not read. Raises StorageError."""
    adapter = adapter_in(checkpoint)
    assert adapter is not None, f"{checkpoint} holds a whole model"
    index = PlaceReader(checkpoint).read_metadata().state_dict_metadata
    tensors = {
        name.removeprefix(_STATE): torch.empty(found.size, dtype=found.properties.dtype)
        for name, found in index.items()
        if name.startswith(_STATE) and is_of_adapter(name)
    }
    read({"model": tensors}, checkpoint, adapter)
    targets = sorted({name.partition(".lora_")[0].rpartition(".")[2] for name in tensors})
    try:
        directory.mkdir(parents=True, exist_ok=True)
        named = {_name_in_peft(name): tensor for name, tensor in tensors.items()}
        save_tensors(named, directory / "adapter_model.safetensors")
        adapter.peft_config(targets).save_pretrained(directory)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"export to {directory}: cannot be written: {error}") from error


def _name_in_peft(name: str) -> str:
    """`layer.lora_A.default.weight` is `base_model.model.layer.lora_A.weight` there."""
    return f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}"
