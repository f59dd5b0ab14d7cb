"""A safetensors file in an object store, of which only the rows that are asked for are read.

Format: 8 bytes with the length of a JSON header, the header (dtype, shape and place of every tensor), the tensors
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError

from rljob_worker.storage.object_path import ObjectPath

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_FIRST_BYTES = 1 << 20
"""Read at once: the header of most files is in them."""
_MAX_HEADER_BYTES = 100 << 20


@dataclass(frozen=True, slots=True)
class RemoteTensor:
    """One tensor of a file; like a slice of safetensors."""

    file: ObjectPath
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """Offset of its first byte in the file."""

    def get_shape(self) -> tuple[int, ...]:
        return self.shape

    def get_dtype(self) -> str:
        """As files call it."""
        return next(name for name, dtype in _DTYPES.items() if dtype == self.dtype)

    def __getitem__(self, place: slice | tuple[slice, ...]) -> torch.Tensor:
        """Rows of dim 0 in one request, and of these the columns that are asked for."""
        rows, *columns = place if isinstance(place, tuple) else (place,)
        row_bytes = self.dtype.itemsize
        for size in self.shape[1:]:
            row_bytes *= size
        first, last, _ = rows.indices(self.shape[0])
        result = self.file.read_range(self.start + first * row_bytes, self.start + last * row_bytes)
        if not result:
            return torch.empty((0, *self.shape[1:]), dtype=self.dtype)
        tensor = torch.frombuffer(bytearray(result), dtype=self.dtype).reshape(last - first, *self.shape[1:])
        return tensor[(slice(None), *columns)]


@dataclass(frozen=True, slots=True)
class RemoteTensors:
    """The tensors of one file, by name."""

    file: ObjectPath
    header: Mapping[str, Any]
    begin: int
    """Offset in the file where the tensors begin, behind the header."""

    @staticmethod
    def open(file: ObjectPath) -> RemoteTensors:
        """Raises SafetensorError for what is not such a file, OSError."""
        size = file.stat().st_size
        first = file.read_range(0, min(size, _FIRST_BYTES))
        length = int.from_bytes(first[:8], "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise SafetensorError(f"its header would have {length} bytes, and the file has {size}")
        text = first[8 : 8 + length] if 8 + length <= len(first) else file.read_range(8, 8 + length)
        header = json.loads(text)
        header.pop("__metadata__", None)
        if size != 8 + length + max((place["data_offsets"][1] for place in header.values()), default=0):
            raise SafetensorError("it is shorter or longer than its header says")
        return RemoteTensors(file, header, 8 + length)

    def keys(self) -> list[str]:
        return list(self.header)

    def get_slice(self, name: str) -> RemoteTensor:
        header = self.header[name]
        if header["dtype"] not in _DTYPES:
            raise SafetensorError(f"{name} is {header['dtype']}, which is not read from a store")
        start = self.begin + header["data_offsets"][0]
        return RemoteTensor(self.file, _DTYPES[header["dtype"]], tuple(header["shape"]), start)
