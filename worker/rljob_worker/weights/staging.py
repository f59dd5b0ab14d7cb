"""The next version in memory of the device, taken in a thread while the engine decodes with the version before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import torch

from rljob_worker.errors import DeadlineExceeded
from rljob_worker.metrics.scalars import Scalars, mean, total
from rljob_worker.weights.chunks import Received, unpack_tensors
from rljob_worker.weights.endpoints import Loader, Receiver, take_nothing

RETRY_SECONDS = 1.0


@dataclass
class _Coming:
    """A version on its way."""

    version: int
    thread: threading.Thread
    is_awaited: threading.Event
    """Whether somebody stands still for it: before, no deadline counts."""
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    num_bytes: int = 0
    error: BaseException | None = None


class StagingTarget:
    """A target whose engine gets each version from memory of the device, in which the next one has that of the one
    before it.

    `stage` begins to take a version and returns at once; a thread then asks for its chunks and copies them, and touches
    nothing of the engine. What goes wrong there is raised by the `sync` or `pass_over` of that version: until then, and
    after it, the engine has the version before.
    """

    def __init__(self, rollout: Loader, receiver: Receiver, keeps: Callable[[str], bool], device: torch.device) -> None:
        """rollout, keeps: as a TargetEndpoint's. device: of the engine."""
        self._rollout, self._receiver, self._keeps, self._device = rollout, receiver, keeps, device
        self._rooms: dict[str, torch.Tensor] = {}
        """By name, of the version that came last."""
        self._coming: _Coming | None = None

    def open(self, meeting: str) -> None:
        self._receiver.open(meeting)

    def stage(self, version: int) -> None:
        """Begin to take a version, while the engine goes on with its own."""
        assert self._coming is None, f"version {self._coming and self._coming.version} has not been used"
        coming = _Coming(version, threading.Thread(), threading.Event())
        # a daemon: a worker that fails elsewhere does not wait for it
        coming.thread = threading.Thread(target=self._take, args=(coming,), name=f"weights {version}", daemon=True)
        self._coming = coming
        coming.thread.start()

    def sync(self, version: int, keep: Collection[int] = ()) -> Scalars:
        """Wait for the rest of a version, which begins to come now unless it is staged, and give it to the engine."""
        started = time.perf_counter()
        coming = self._finished(version)
        there = time.perf_counter()
        self._rollout.load_weights(coming.tensors.items(), version, lasting=True)
        if self._device.type != "cpu":  # the next version comes into the memory that is copied from
            torch.get_device_module(self._device).synchronize(self._device)
        return {
            "weights/received_bytes": total(coming.num_bytes),
            "time/weights_wait_seconds": mean(there - started),
            "time/weights_load_seconds": mean(time.perf_counter() - there),
        }

    def pass_over(self, version: int) -> None:
        """Let a version go by, of which something may be here."""
        if self._coming is not None:
            self._finished(version)
        else:
            take_nothing(self._receiver, version)

    def close(self) -> None:
        self._receiver.close()

    def _finished(self, version: int) -> _Coming:
        """A version, once all of it is here. Raises what went wrong on its way."""
        if self._coming is None:
            self.stage(version)
        coming, self._coming = self._coming, None
        assert coming is not None and coming.version == version, f"version {version} is not the one that is staged"
        coming.is_awaited.set()
        coming.thread.join()
        if coming.error is not None:
            raise coming.error
        return coming

    def _take(self, coming: _Coming) -> None:
        try:
            with closing(self._chunks(coming)) as chunks, torch.no_grad(), self._own_stream():
                for name, tensor in unpack_tensors(chunks, self._keeps):
                    coming.tensors[name] = self._room(name, tensor).copy_(tensor)
                    coming.num_bytes += tensor.nbytes
            self._rooms = coming.tensors
        except BaseException as error:  # raised where the version is asked for
            coming.error = error

    @contextmanager
    def _own_stream(self) -> Iterator[None]:
        """A block whose copies go beside what the engine computes, and are over at its end. What one of them reads in
        memory of the host has been read when `copy_` returns."""
        if self._device.type == "cpu":
            yield
            return
        stream = torch.Stream(self._device)
        with stream:
            yield
        stream.synchronize()

    def _room(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        room = self._rooms.get(name)
        if room is None or (room.shape, room.dtype) != (tensor.shape, tensor.dtype):
            room = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        return room

    def _chunks(self, coming: _Coming) -> Generator[Received, None, None]:
        """Those of a version, for as long as it takes until it is awaited: generation may last longer than deadlines,
        and what has come of a version does not come again."""
        while True:
            is_awaited = coming.is_awaited.is_set()
            try:
                yield from self._receiver.receive(coming.version)
                return
            except DeadlineExceeded:
                if is_awaited:
                    raise
                coming.is_awaited.wait(RETRY_SECONDS)  # a plane that is broken says so at once
