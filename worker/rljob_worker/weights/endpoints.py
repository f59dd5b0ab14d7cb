"""One rank's part in one edge of weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from rljob_api.memory.weight_slices import WeightSlices
from rljob_worker.engines.protocols import TrainEngine
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.slices import own_slices
from rljob_worker.metrics.scalars import Scalars, mean, total
from rljob_worker.weights.chunks import Received, unpack_tensors
from rljob_worker.weights.slices import sent_parts, tensor_name, whole_tensors

if TYPE_CHECKING:
    import torch

Named = tuple[str, "torch.Tensor"]


class WeightsEndpoint(Protocol):
    """What a rank does about one edge. All ranks of the edge do the same versions in the same order."""

    def open(self, meeting: str) -> None:
        """Before the first version. meeting: the address, `host:port`, of the store where the job's workers meet."""

    def sync(self, version: int, keep: Collection[int] = ()) -> Scalars:
        """Do its part; what it did. keep: versions before this one that may still be asked for. Raises PeerLost or
        DeadlineExceeded when another rank does not do its own, InvalidJob when what comes is not the model that
        samples."""
        ...

    def close(self) -> None:
        """After the last."""


class Loader(Protocol):
    """What a target fills: a RolloutEngine, as far as weights go."""

    def load_weights(self, weights: Iterable[Named], version: int, *, lasting: bool = False) -> None: ...


class SliceLoader:
    """Gives an engine what its rank keeps under the names of the tensors."""

    def __init__(self, engine: Loader) -> None:
        self._engine = engine

    def load_weights(self, weights: Iterable[Named], version: int, *, lasting: bool = False) -> None:
        named = ((tensor_name(name), tensor) for name, tensor in weights)
        self._engine.load_weights(named, version, lasting=lasting)


class Out(Protocol):
    """Where a source puts the tensors of one version."""

    @property
    def room_seconds(self) -> float:
        """How long `send`, and the end of the version, have waited for slots that are still being read."""
        ...

    def send(self, bucket: Iterable[Named]) -> int:
        """Tensors, each valid only until the next is asked for; how many bytes go. May return before they have left."""
        ...


class Sender(Protocol):
    """A source's way out."""

    def open(self, meeting: str) -> None: ...

    def sending(self, version: int, keep: Collection[int] = ()) -> AbstractContextManager[Out]:
        """The version is complete when the block ends without an exception. keep: versions before it that stay."""
        ...

    def close(self) -> None: ...


class Receiver(Protocol):
    """A target's way in."""

    def open(self, meeting: str) -> None: ...

    def receive(self, version: int) -> Generator[Received, None, None]:
        """The chunks of all sources, in any order, to the last. To close it early is to skip the rest."""
        ...

    def close(self) -> None: ...


def take_nothing(receiver: Receiver, version: int) -> None:
    """Wait until all of a version has gone by."""
    with closing(receiver.receive(version)) as chunks:
        for _ in chunks:
            pass


@dataclass(frozen=True)
class InProcessEndpoint:
    """Trains and samples: weights go from engine to engine, and where the two share memory nothing is copied."""

    train: TrainEngine
    rollout: RolloutEngine
    slices: WeightSlices
    rank: int
    """Its number in the copy that generates."""
    _versions: list[int] = field(default_factory=list)
    """Those that were copied: what nobody trains is in the first."""

    def open(self, meeting: str) -> None:
        """There is nobody to meet."""

    def sync(self, version: int, keep: Collection[int] = ()) -> Scalars:
        weights = self.train.weights(trained_only=True) if self._versions else self.train.weights()
        self.rollout.load_weights(own_slices(weights, self.slices, self.rank), version)
        self._versions.append(version)
        return {}

    def close(self) -> None:
        """There is nothing to close."""


@dataclass(frozen=True)
class SourceEndpoint:
    """Trains, and sends its share."""

    train: TrainEngine
    sources: Sequence[int]
    """Ranks of the training group that send."""
    sender: Sender
    model: str
    number: int
    """Place of this rank among those that send."""
    slices: WeightSlices
    """Parts in which it sends every tensor."""
    _versions: list[int] = field(default_factory=list)
    """Those that were sent: what nobody trains goes with the first."""

    def open(self, meeting: str) -> None:
        self.sender.open(meeting)

    def sync(self, version: int, keep: Collection[int] = ()) -> Scalars:
        with self.sender.sending(version, keep) as out:
            buckets = _buckets(self.train, self.sources, self._versions)
            num_bytes = sum(out.send(sent_parts(bucket, self.slices)) for bucket in buckets)
        self._versions.append(version)
        return {"weights/sent_bytes": total(num_bytes), "time/weights_room_wait_seconds": mean(out.room_seconds)}

    def send_again(self, version: int, keep: Collection[int], tensors: Iterable[Named]) -> None:
        """This source's part of a version of an earlier attempt."""
        with self.sender.sending(version, keep) as out:
            out.send(sent_parts(whole_tensors(tensors, self.slices), self.slices))

    def close(self) -> None:
        self.sender.close()


@dataclass(frozen=True)
class GatherEndpoint:
    """Trains, and only helps to gather what others send."""

    train: TrainEngine
    sources: Sequence[int]
    _versions: list[int] = field(default_factory=list)

    def open(self, meeting: str) -> None:
        """It has no part in the sending."""

    def sync(self, version: int, keep: Collection[int] = ()) -> Scalars:
        for bucket in _buckets(self.train, self.sources, self._versions):
            assert not any(True for _ in bucket), "a rank that is not a source was given tensors to send"
        self._versions.append(version)
        return {}

    def close(self) -> None:
        """There is nothing to close."""


def _buckets(train: TrainEngine, sources: Sequence[int], versions: Sequence[int]) -> Iterator[Iterable[Named]]:
    """What the sources send after they have sent some versions."""
    return train.weight_buckets(sources, trained_only=True) if versions else train.weight_buckets(sources)


class _Counted:
    """Tensors, and how many bytes they had."""

    def __init__(self, tensors: Iterable[Named]) -> None:
        self._tensors = tensors
        self.num_bytes = 0

    def __iter__(self) -> Iterator[Named]:
        for name, tensor in self._tensors:
            self.num_bytes += tensor.nbytes
            yield name, tensor


class TimedChunks:
    """Chunks, and how long their reader has waited for them."""

    def __init__(self, chunks: Iterator[Received], clock: Callable[[], float] = time.perf_counter) -> None:
        self._chunks, self._clock = chunks, clock
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Received]:
        return self

    def __next__(self) -> Received:
        started = self._clock()
        try:
            return next(self._chunks)
        finally:
            self.seconds += self._clock() - started


@dataclass(frozen=True)
class TargetEndpoint:
    """Samples with what comes."""

    rollout: Loader
    """Takes what is kept, under the names that it goes by."""
    receiver: Receiver
    keeps: Callable[[str], bool]
    """Which names are of this rank's slices."""

    def open(self, meeting: str) -> None:
        self.receiver.open(meeting)

    def sync(self, version: int, keep: Collection[int] = ()) -> Scalars:
        started = time.perf_counter()
        # closed here: an error keeps the frames that it went through, and with them a generator that is not at its end
        with closing(self.receiver.receive(version)) as chunks:
            awaited = TimedChunks(chunks)
            kept = _Counted(unpack_tensors(awaited, self.keeps))
            self.rollout.load_weights(kept, version)
        load_seconds = time.perf_counter() - started - awaited.seconds
        return {
            "weights/received_bytes": total(kept.num_bytes),
            "time/weights_wait_seconds": mean(awaited.seconds),
            "time/weights_load_seconds": mean(load_seconds),
        }

    def pass_over(self, version: int) -> None:
        """Let a version go by: once it is here it is not needed."""
        take_nothing(self.receiver, version)

    def close(self) -> None:
        self.receiver.close()
