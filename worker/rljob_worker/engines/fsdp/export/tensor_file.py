"""safetensors files that are written tensor by tensor: https://huggingface.co/docs/safetensors#format

The library's own functions want all tensors of a file in memory. The format is the length of a header in 8 bytes, the
header, JSON that says where each tensor's bytes are, and these bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch

from rljob_worker.engines.fsdp.tensors.buckets import Named

_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def write_tensors(
    path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, tensors: Iterable[Named]
) -> None:
    """A file of tensors of these shapes, which come in this order and whole, as `dtype`. Whoever may read the directory
    may read it. Raises OSError."""
    with path.open("xb") as file:
        file.write(_header(shapes, dtype))
        for (name, shape), (result, tensor) in zip(shapes.items(), tensors, strict=True):
            assert result == name and tuple(tensor.shape) == shape, f"{result} {tuple(tensor.shape)} for {name} {shape}"
            file.write(tensor.to(dtype).contiguous().view(torch.uint8).numpy())
    path.chmod(path.parent.stat().st_mode & 0o666)


def _header(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> bytes:
    """With its length before it; it ends where numbers of any type may begin."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
