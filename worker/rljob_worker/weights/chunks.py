"""Tensors in chunks of memory, and back: each is copied once on its way out and once on its way in.

A chunk's table says which pieces of which tensors lie in it. A tensor that fits in a chunk lies in one; a longer one
is cut. Chunks may come in any order and from several sources.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import msgspec
import torch

from rljob_worker.errors import PeerLost

ALIGNMENT = 64
"""Pieces begin at multiples of this, so that a view of any type is aligned."""


Count = Annotated[int, msgspec.Meta(ge=0)]


class TensorPiece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Some bytes of one tensor."""

    name: str
    dtype: str
    shape: tuple[Count, ...]
    """Shape of the whole tensor."""
    start: Count
    """Its first byte in the tensor."""
    num_bytes: Count
    offset: Count
    """Its first byte in the chunk."""


class Slots(Protocol):
    """Where chunks are written."""

    @property
    def slot_bytes(self) -> int: ...

    def reserve(self, num_bytes: int) -> torch.Tensor:
        """uint8 [num_bytes]."""
        ...

    def seal(self, table: bytes, num_bytes: int | None = None) -> None: ...


class Received(Protocol):
    """A chunk to read: it holds until the next one is asked for."""

    @property
    def table(self) -> bytes: ...

    @property
    def data(self) -> torch.Tensor:
        """uint8 [bytes]; read only."""
        ...


def pack_tensors(slots: Slots, tensors: Iterable[tuple[str, torch.Tensor]]) -> int:
    """Copy tensors, on any device, straight into slots; each need only be good until the next one is asked for. How
    many bytes they have."""
    writer, num_bytes = ChunkWriter(slots), 0
    for name, tensor in tensors:
        writer.write(name, tensor)
        num_bytes += tensor.nbytes
    writer.seal()
    return num_bytes


class ChunkWriter:
    """Copies tensors into slots, one behind the other."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._room: torch.Tensor | None = None
        self._used = 0
        self._pieces: list[TensorPiece] = []

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """A tensor, of which nothing is needed any more once this returns."""
        flat = flat_bytes(tensor.detach())
        if self._room is not None and self._used + len(flat) > len(self._room):
            self.seal()
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        for start in range(0, max(len(flat), 1), self._slots.slot_bytes):
            piece = flat[start : start + self._slots.slot_bytes]
            if self._room is None or self._used + len(piece) > len(self._room):
                self.seal()
                self._room = self._slots.reserve(self._slots.slot_bytes)
            self._room[self._used : self._used + len(piece)].copy_(piece)
            self._pieces.append(TensorPiece(name, dtype, shape, start, len(piece), self._used))
            self._used = -(-(self._used + len(piece)) // ALIGNMENT) * ALIGNMENT

    def seal(self) -> None:
        """Send what has been written."""
        if self._room is None:
            return
        last = self._pieces[-1]
        self._slots.seal(msgspec.msgpack.encode(self._pieces), last.offset + last.num_bytes)
        self._room, self._used, self._pieces = None, 0, []


_TABLE = msgspec.msgpack.Decoder(list[TensorPiece])


def unpack_tensors(
    chunks: Iterable[Received], keeps: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor once, as soon as it is whole; it is only good until the next one is asked for. Of those that `keeps`
    does not name not a byte is read.

    Raises PeerLost naming a tensor that came twice, or that is not whole at the end.
    """
    assembly = _Assembly()
    for chunk in chunks:
        for piece in _pieces_of(chunk.table):
            if not keeps(piece.name):
                continue
            whole = assembly.add(piece, chunk.data)
            if whole is not None:
                yield piece.name, whole
                assembly.has_been_read()
    assembly.check_complete()


def _pieces_of(table: bytes) -> list[TensorPiece]:
    try:
        return _TABLE.decode(table)
    except msgspec.DecodeError as error:
        raise PeerLost(f"{len(table):,} bytes are not a table of weights: {error}") from error


@dataclass
class _Cut:
    """A tensor with some of its pieces here."""

    tensor: torch.Tensor
    room: torch.Tensor
    """Its memory; uint8, of as many bytes or more."""
    num_filled: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)
    """(first byte, byte after the last) of the pieces, ascending."""

    def fill(self, piece: TensorPiece, data: torch.Tensor) -> None:
        span = (piece.start, piece.start + piece.num_bytes)
        place = bisect_left(self.spans, span)
        before, after = self.spans[:place][-1:], self.spans[place : place + 1]
        if any(stop > span[0] for _, stop in before) or any(start < span[1] for start, _ in after):
            raise PeerLost(f"bytes {span[0]} to {span[1]} of the weights {piece.name} came twice")
        self.spans.insert(place, span)
        flat_bytes(self.tensor)[span[0] : span[1]].copy_(data)
        self.num_filled += piece.num_bytes


class _Assembly:
    """Tensors that have come, whole or in part.

    Those that were cut take over the memory of those before them: of a large model they are nearly all, and to have the
    pages of each made anew takes longer than to copy it.
    """

    def __init__(self) -> None:
        self._whole: set[str] = set()
        self._cut: dict[str, _Cut] = {}
        self._handed_out: torch.Tensor | None = None
        self._free: list[torch.Tensor] = []

    def add(self, piece: TensorPiece, data: torch.Tensor) -> torch.Tensor | None:
        """The tensor of a piece if that makes it whole. data: the bytes of the piece's chunk."""
        if piece.name in self._whole:
            raise PeerLost(f"the weights {piece.name} came twice")
        dtype, num_bytes = _type_of(piece)
        result = data[piece.offset : piece.offset + piece.num_bytes]
        if len(result) != piece.num_bytes or piece.start + piece.num_bytes > num_bytes:
            raise PeerLost(f"a table of weights that is not so: {piece} in a chunk of {len(data)} bytes")
        if piece.num_bytes == num_bytes:
            self._whole.add(piece.name)
            return result.view(dtype).reshape(piece.shape) if num_bytes else torch.empty(piece.shape, dtype=dtype)
        cut = self._cut.get(piece.name)
        if cut is None:
            room = self._room(num_bytes, data.device)
            cut = self._cut[piece.name] = _Cut(room[:num_bytes].view(dtype).reshape(piece.shape), room)
        cut.fill(piece, result)
        if cut.num_filled < num_bytes:
            return None
        self._whole.add(piece.name)
        self._handed_out = self._cut.pop(piece.name).room
        return cut.tensor

    def has_been_read(self) -> None:
        """The tensor that `add` gave last: another may have its memory."""
        if self._handed_out is not None:
            self._free.append(self._handed_out)
            self._handed_out = None

    def _room(self, num_bytes: int, device: torch.device) -> torch.Tensor:
        """The smallest that is large enough. Where none is, the largest makes way, so that there are never more than
        were needed at once."""
        self._free.sort(key=len)
        place = bisect_left(self._free, num_bytes, key=len)
        if place < len(self._free):
            return self._free.pop(place)
        if self._free:
            self._free.pop()
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def check_complete(self) -> None:
        """All pieces have come. Raises PeerLost naming what is not whole."""
        if self._cut:
            name, cut = next(iter(self._cut.items()))
            size = len(flat_bytes(cut.tensor))
            more = f", and {len(self._cut) - 1} more" * (len(self._cut) > 1)
            raise PeerLost(f"the weights ended inside {name}: {cut.num_filled} of {size} bytes{more}")


def _type_of(piece: TensorPiece) -> tuple[torch.dtype, int]:
    """The type of the whole tensor and its size in bytes."""
    dtype = getattr(torch, piece.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise PeerLost(f"the weights {piece.name} have a type that is none: {piece.dtype!r}")
    return dtype, math.prod(piece.shape) * dtype.itemsize


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor, uint8 [num_bytes]; a copy if it is not contiguous."""
    if tensor.numel() == 0:  # torch cannot view an empty tensor as another type
        return torch.empty(0, dtype=torch.uint8)
    return tensor.reshape(-1).view(torch.uint8)
