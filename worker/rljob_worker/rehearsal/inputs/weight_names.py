"""What the weights of a model are called, by the headers of their files: no tensor is read, torch is not imported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.rehearsal.inputs.tokenizer import json_object
from rljob_worker.weight_index import INDEX, files_by_tensor

MAX_HEADER_BYTES = 100_000_000
"""As the library has it: what is longer is not a header."""

Shapes = Mapping[str, tuple[int, ...] | None]
"""By name of the tensor; None where only the index is here."""


def weight_shapes(place: Path) -> Shapes:
    """Shapes of every tensor of a directory; nothing where that is not known. Files without bytes stand for such that
    are elsewhere. Raises BadData for what is not a whole safetensors file, InvalidJob for a damaged index."""
    indexed = indexed_files(place)
    files = [file for file in _weight_files(place, set(indexed.values())) if file.stat().st_size]
    if not files:
        return dict.fromkeys(indexed)
    return {name: tuple(said["shape"]) for file in files for name, said in _header(file).items()}


def _weight_files(place: Path, indexed: set[str]) -> list[Path]:
    """Those that a run reads: others are copies in the layout of another library."""
    named = [place / name for name in sorted(indexed) if (place / name).is_file()]
    whole = place / "model.safetensors"
    return named or ([whole] if whole.is_file() else sorted(place.glob("*.safetensors")))


def indexed_files(place: Path) -> dict[str, str]:
    """The file of each tensor, by the index; nothing where there is none. Raises InvalidJob for a damaged one."""
    index = json_object(place / INDEX)
    try:
        return files_by_tensor(index) if "weight_map" in index else {}
    except ValueError as error:
        raise InvalidJob(f"{place / INDEX} is not an index: {error}; fetch the model again") from error


def linear_layers(shapes: Shapes) -> set[str]:
    """Names of the layers that have a matrix, in the layers that are numbered, as far as is known."""
    result = set()
    for name, shape in shapes.items():
        layer, _, last = name.rpartition(".")
        is_matrix = len(shape) == 2 if shape is not None else not _sounds_like_a_norm(layer)
        if last == "weight" and is_matrix and any(part.isdecimal() for part in layer.split(".")):
            result.add(layer)
    return result


def _sounds_like_a_norm(layer: str) -> bool:
    last = layer.rpartition(".")[2]
    return "norm" in last or last.startswith("ln_")


def _header(file: Path) -> dict[str, Any]:
    """8 bytes with the length of a JSON header, the header: dtype, shape and place of every tensor."""
    with file.open("rb") as opened:
        first = opened.read(8)
        length, size = int.from_bytes(first, "little"), file.stat().st_size
        text = opened.read(length) if length <= min(size - 8, MAX_HEADER_BYTES) else b""
    try:
        header: dict[str, Any] = json.loads(text)
        header.pop("__metadata__", None)
        end = 8 + length + max((int(said["data_offsets"][1]) for said in header.values()), default=0)
    except (ValueError, AttributeError, TypeError, LookupError):
        is_pointer = first == b"version "
        fix = (
            "`git lfs pull` in its folder fetches what this is a pointer to" if is_pointer else "fetch the model again"
        )
        raise BadData(f"{file} is not a safetensors file; {fix}") from None
    if size != end:
        raise BadData(f"{file} has {size:,} bytes, and its header speaks of {end:,}; fetch the model again")
    return header
