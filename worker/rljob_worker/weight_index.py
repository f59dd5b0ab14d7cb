"""The index of a model whose weights are in several files, as transformers writes it. Pure; torch is not imported."""

from __future__ import annotations

from typing import Any

INDEX = "model.safetensors.index.json"


def files_by_tensor(index: Any) -> dict[str, str]:
    """The file of each tensor. Raises ValueError for what is not an index."""
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ValueError("its weight_map is not a table of tensors and their files")
    return places
