"""Policy weights from the engine that trains them to those that sample: in-process or through the data buffers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import numpy as np
import torch

from rljob_api.planning.plan import Plan, WeightEdge
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.protocols import RolloutEngine, TrainEngine
from rljob_worker.errors import PeerLost
from rljob_worker.scalars import Scalars, mean

CHUNK_BYTES = 16 << 20
"""A chunk closes when it holds this much; a larger tensor is cut into several."""


class Broadcast(Protocol):
    """The part of the data buffer client that weights use."""

    def send(self, version: int, edge: str, chunks: Iterable[Batch]) -> None: ...

    def receive(self, version: int, edge: str) -> Iterator[Batch]: ...


class WeightSync:
    """One rank's part of every weight edge. After `sync(version)` this rank's rollout engines hold that version."""

    def __init__(
        self,
        plan: Plan,
        group: str,
        rank: int,
        buffer: Broadcast,
        train_engines: Mapping[str, TrainEngine],
        rollout_engines: Mapping[str, RolloutEngine],
    ) -> None:
        self._buffer = buffer
        self._rank = rank
        self._train = train_engines
        self._rollout = rollout_engines
        self._edges = [(edge, self._role(plan, edge, group)) for edge in plan.weights]

    def sync(self, version: int) -> Scalars:
        """Send, receive or copy every policy's weights as `version`."""
        started = time.perf_counter()
        for edge, role in self._edges:
            if role == "local":
                self._rollout[edge.model].load_weights(self._train[edge.model].weights(), version)
            elif role == "source":
                self._send(edge, version)
            elif role == "target":
                chunks = self._buffer.receive(version, edge.name)
                self._rollout[edge.model].load_weights(unpack(chunks), version)
        return {"time/weight_sync_seconds": mean(time.perf_counter() - started)}

    def _send(self, edge: WeightEdge, version: int) -> None:
        tensors = self._train[edge.model].weights()
        if self._rank == 0:
            self._buffer.send(version, edge.name, pack(tensors))
        else:
            for _ in tensors:  # gathering a tensor is collective: every rank of the mesh goes through all of them
                pass

    @staticmethod
    def _role(plan: Plan, edge: WeightEdge, group: str) -> str:
        if edge.transport == "Local":
            return "local" if plan.engine(edge.source).group == group else "none"
        if plan.engine(edge.source).group == group:
            return "source"
        return "target" if plan.engine(edge.target).group == group else "none"


def pack(tensors: Iterable[tuple[str, torch.Tensor]], chunk_bytes: int = CHUNK_BYTES) -> Iterator[Batch]:
    """Tensors as chunks of rows: name, dtype, shape, the byte at which the piece starts, and its bytes."""
    pieces: list[tuple[str, str, list[int], int, np.ndarray]] = []
    size, number = 0, 0
    for name, tensor in tensors:
        flat = bytes_of(tensor.detach().cpu().contiguous())
        dtype = str(tensor.dtype).removeprefix("torch.")
        for start in range(0, max(len(flat), 1), chunk_bytes):
            piece = flat[start : start + chunk_bytes].copy()  # the tensor is only good until the next one is asked for
            if pieces and size + len(piece) > chunk_bytes:
                yield _chunk(pieces, number)
                pieces, size, number = [], 0, number + len(pieces)
            pieces.append((name, dtype, list(tensor.shape), start, piece))
            size += len(piece)
    if pieces:
        yield _chunk(pieces, number)


def _chunk(pieces: list[tuple[str, str, list[int], int, np.ndarray]], first: int) -> Batch:
    names, dtypes, shapes, starts, data = zip(*pieces, strict=True)
    row_ids = np.arange(first, first + len(pieces), dtype=np.int64)
    columns = {
        "name": Column.strings(names),
        "dtype": Column.strings(dtypes),
        "shape": Column.ragged(shapes),
        "start": Column.fixed(np.asarray(starts, np.int64)),
        "data": Column.ragged(data, "uint8"),
    }
    return Batch.build(row_ids, row_ids, columns)


def unpack(chunks: Iterable[Batch]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that `pack` took apart, in order. A stream that ends inside a tensor is a PeerLost."""
    name, tensor, whole, filled = "", torch.empty(0), np.empty(0, np.uint8), 0
    for chunk in chunks:
        for i in range(len(chunk)):
            if int(chunk["start"].row(i)) == 0:
                name = chunk["name"].row(i)
                tensor = torch.empty(chunk["shape"].row(i).tolist(), dtype=getattr(torch, chunk["dtype"].row(i)))
                whole, filled = bytes_of(tensor), 0
            piece = chunk["data"].row(i)
            whole[filled : filled + len(piece)] = piece
            filled += len(piece)
            if filled == len(whole):
                yield name, tensor
    if filled != len(whole):
        raise PeerLost(f"the weights ended inside {name}: {filled} of {len(whole)} bytes")


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous tensor on the CPU, uint8 [num_bytes]."""
    if tensor.numel() == 0:  # torch cannot view an empty tensor as another type
        return np.empty(0, np.uint8)
    return tensor.reshape(-1).view(torch.uint8).numpy()
