"""A policy as files of a folder, from which a server reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PretrainedConfig

from rljob_worker.errors import StorageError
from rljob_worker.weight_index import INDEX

FILE_BYTES = 1 << 30
READABLE = 0o755
"""By the server, which may run as somebody else."""


class WeightFolder:
    """Where one engine writes one version after another; only the one that is being read is there."""

    def __init__(self, folder: Path, config: PretrainedConfig, file_bytes: int = FILE_BYTES) -> None:
        """config: of the model. file_bytes: of tensors in one file, which are in memory until it is written."""
        self._folder, self._config, self._file_bytes = folder, config, file_bytes

    def write(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> Path:
        """A folder as `from_pretrained` takes it, without tokenizer. Each tensor is copied before the next is asked
        for. Raises StorageError."""
        self.clear()
        folder = self._folder / f"version-{version}"
        try:
            folder.mkdir(parents=True)
            for path in (self._folder, folder):
                path.chmod(READABLE)
            self._config.save_pretrained(folder)
            places: dict[str, str] = {}
            held: dict[str, torch.Tensor] = {}
            total = written = 0
            for name, tensor in tensors:
                held[name] = tensor.detach().to("cpu", copy=True).contiguous()
                total += held[name].nbytes
                if total - written >= self._file_bytes:
                    _write_file(folder, held, places)
                    written = total
            _write_file(folder, held, places)
            index = {"metadata": {"total_size": total}, "weight_map": places}
            (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
        except OSError as error:
            raise StorageError(f"rollout.server.weightsDirectory: {folder} cannot be written: {error}") from error
        return folder

    def clear(self) -> None:
        """Remove what there is."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _write_file(folder: Path, held: dict[str, torch.Tensor], places: dict[str, str]) -> None:
    """Move the held tensors into a file of their own, if there are any."""
    if not held:
        return
    name = f"model-{len(set(places.values())) + 1:05d}.safetensors"
    save_file(held, folder / name, metadata={"format": "pt"})
    places |= dict.fromkeys(held, name)
    held.clear()
