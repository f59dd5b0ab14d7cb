"""Only what changed: of each tensor the places and the new values, for a target that has the version before.

On the wire a tensor `w` is either itself, whole, or two tensors: `w:7:places` and `w:7:values`, the positions in the
flat tensor whose bits are not those of version 7, and what is there now. A tensor that did not change is two empty
ones, so that one that is lost is missed. A tensor goes whole where places and values would be more bytes: from half of
float32 on, from a third of bfloat16. So a version is never more than the weights.

Source and target each keep what they have in host memory, in the precision of the job: a source its share, a target its
slice, since an engine may hold the weights merged or split. A tensor is here what goes under one name: a part of one of
the checkpoint, where ranks of a copy share it (`slices`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from rljob_worker.errors import PeerLost
from rljob_worker.weights.endpoints import Loader, Named, Out, Sender

PLACES, VALUES = "places", "values"
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers as wide as an element, by its bytes."""


class DeltaSender:
    """Sends what changed since the version that it sent last; everything at its start and every `full_every`th time."""

    def __init__(self, sender: Sender, full_every: int) -> None:
        self._sender, self._full_every = sender, full_every
        self._base: int | None = None
        self._kept: dict[str, torch.Tensor] = {}
        self._since_full = 0

    def open(self, meeting: str) -> None:
        self._sender.open(meeting)

    @contextmanager
    def sending(self, version: int, keep: Collection[int] = ()) -> Iterator[Out]:
        base = self._base if self._since_full < self._full_every else None
        out, self._base = _Out(base, self._kept), None
        with self._sender.sending(version, keep) as out.out:
            yield out
        self._base, self._kept = version, out.kept
        self._since_full = 1 if base is None else self._since_full + 1

    def close(self) -> None:
        self._sender.close()
        self._base, self._kept = None, {}


class _Out:
    """One version on its way out."""

    out: Out

    def __init__(self, base: int | None, last: dict[str, torch.Tensor]) -> None:
        self._base, self._last = base, last
        self.kept: dict[str, torch.Tensor] = {}
        """What has been sent: a tensor that comes from another source next time is forgotten."""

    @property
    def room_seconds(self) -> float:
        return self.out.room_seconds

    def send(self, bucket: Iterable[Named]) -> int:
        return self.out.send(part for name, tensor in bucket for part in self._parts(name, tensor.detach().cpu()))

    def _parts(self, name: str, tensor: torch.Tensor) -> Iterator[Named]:
        last = self._last.pop(name, None)
        if self._base is None or last is None or (last.shape, last.dtype) != (tensor.shape, tensor.dtype):
            self.kept[name] = _copy(tensor)
            yield name, tensor
            return
        self.kept[name] = last
        places = changed_places(last, tensor)
        values = tensor.reshape(-1)[places]
        if places.nbytes + values.nbytes < tensor.nbytes:
            last.view(-1)[places] = values
            yield f"{name}:{self._base}:{PLACES}", places
            yield f"{name}:{self._base}:{VALUES}", values
        else:
            last.copy_(tensor)
            yield name, tensor


class DeltaLoader:
    """Completes what changed to whole tensors, for the engine that takes them."""

    def __init__(self, engine: Loader) -> None:
        self._engine = engine
        self._version: int | None = None
        self._kept: dict[str, torch.Tensor] = {}

    def load_weights(self, weights: Iterable[Named], version: int, *, lasting: bool = False) -> None:
        """Raises PeerLost by name for changes to another version than the one that is here, or with a part
        missing; after that only a full version is taken."""
        arriving = _Arriving(self._version, self._kept)
        self._version, self._kept = None, arriving.kept
        self._engine.load_weights(arriving.whole(weights), version, lasting=lasting)
        self._version = version


@dataclass(frozen=True)
class _Part:
    """A tensor as it came."""

    name: str
    base: int | None
    """None: it is whole."""
    what: str

    @staticmethod
    def of(written: str) -> _Part:
        name, *rest = written.rsplit(":", 2)
        if not rest:
            return _Part(written, None, "")
        if len(rest) != 2 or not rest[0].isdecimal() or rest[1] not in (PLACES, VALUES):
            raise PeerLost(f"the weights {written} are neither a tensor nor what changed in one")
        return _Part(name, int(rest[0]), rest[1])


class _Arriving:
    """One version on its way in."""

    def __init__(self, base: int | None, last: dict[str, torch.Tensor]) -> None:
        self._base, self._last = base, last
        self._half: dict[str, tuple[str, torch.Tensor]] = {}
        """Parts whose other part has not come, with which of the two they are."""
        self.kept: dict[str, torch.Tensor] = {}

    def whole(self, weights: Iterable[Named]) -> Iterator[Named]:
        for written, tensor in weights:
            part = _Part.of(written)
            if part.base is None:
                self._last.pop(part.name, None)  # one copy of a model is enough
                self.kept[part.name] = _copy(tensor)
                yield part.name, tensor
            elif (other := self._other(part, tensor)) is not None:
                yield part.name, self._completed(part.name, {part.what: tensor.cpu(), other[0]: other[1]})
        for name, (what, _) in self._half.items():
            raise PeerLost(f"of what changed in the weights {name} only the {what} came")

    def _other(self, part: _Part, tensor: torch.Tensor) -> tuple[str, torch.Tensor] | None:
        if part.base != self._base:
            here = "no whole version is here" if self._base is None else f"version {self._base} is here"
            raise PeerLost(f"the weights {part.name} came as changes to version {part.base}, but {here}")
        other = self._half.pop(part.name, None)
        if other is None:
            self._half[part.name] = part.what, _copy(tensor)
        return other

    def _completed(self, name: str, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        last = self._last.pop(name, None)
        if last is None:
            raise PeerLost(f"changes of the weights {name} came twice, or to weights that are not here")
        self.kept[name] = last
        _apply(name, last, parts[PLACES], parts[VALUES])
        return last


def changed_places(last: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Positions in the flat tensor whose bits differ, ascending: int32 [num_changed], int64 where it needs them."""
    bits = _BITS[tensor.element_size()]
    places = (last.reshape(-1).view(bits) != tensor.reshape(-1).view(bits)).nonzero().view(-1)
    return places.to(_place_type(tensor))


def _place_type(tensor: torch.Tensor) -> torch.dtype:
    return torch.int32 if tensor.numel() <= torch.iinfo(torch.int32).max else torch.int64


def _apply(name: str, last: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> None:
    wanted = (_place_type(last), last.dtype, places.shape)
    if (places.dtype, values.dtype, values.shape) != wanted or places.dim() != 1:
        result = f"places {places.dtype} {tuple(places.shape)} and values {values.dtype} {tuple(values.shape)}"
        raise PeerLost(f"what changed in the weights {name} does not fit {last.dtype} {tuple(last.shape)}: {result}")
    if len(places) and not 0 <= int(places.min()) <= int(places.max()) < last.numel():
        raise PeerLost(f"what changed in the weights {name} is outside of their {last.numel():,} values")
    last.view(-1)[places] = values


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """In host memory, contiguous."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
