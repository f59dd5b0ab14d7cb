"""What the stages may ask of an engine that trains, and what an engine asks of an algorithm. `rollout.protocol` is what
they may ask of one that generates.

A **TrainEngine** holds one model on the ranks of one mesh and can score rows, take optimizer steps and write
checkpoints; a **ScoringEngine** only scores. An **Objective** is the algorithm's side of an update: it says which
columns and model outputs it reads, counts its denominators, and maps packed tokens to a loss.

    stage                     engine                              objective
    engine.update(batch, o) ->  counts = all_reduce(o.counts(batch))
                                for each micro-batch:
                                    tokens = TokenBatch(...)     -> loss, metrics = o(tokens, counts)
                                    loss.backward()
                                clip by the global norm, step the optimizer and the schedule

Padding, packing, sharding and temperature are the engine's; baselines, clipping and aggregation the objective's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rljob_worker.algorithms.metric_accumulator import Measured
from rljob_worker.batch import Batch, Column
from rljob_worker.metrics.scalars import Scalar
from rljob_worker.storage.paths import StoragePath

if TYPE_CHECKING:
    import torch

Rest = TypeVar("Rest")


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The response tokens of one micro-batch, packed row after row without padding.

    Two rows with responses of 2 and 3 tokens give `row = [0, 0, 1, 1, 1]` and per-token tensors of length 5. There is
    always at least one token: a rank that has run out of rows does not ask the objective.
    """

    log_probs: torch.Tensor
    """[tokens], differentiable: log-probability of each response token at the temperature. NaN from a critic."""
    entropy: torch.Tensor | None
    """[tokens]: entropy of the distribution each token was drawn from; differentiable where `entropy` was asked for,
    not where only `entropy_figure` was; None otherwise."""
    values: torch.Tensor | None
    """[tokens], differentiable: the critic's value of the state before each token; None unless asked for. Never
    scaled by the temperature."""
    row: torch.Tensor
    """[tokens] int64, ascending: the row of the micro-batch each token belongs to."""
    num_rows: int
    """Rows of the micro-batch, rows without a response token included."""
    columns: dict[str, torch.Tensor]
    """The objective's columns: ragged ones packed to [tokens], fixed ones [num_rows]."""
    actions: torch.Tensor
    """int64 [actions], ascending: the tokens where the objective's `mask` is not 0. The host knows how many."""
    full_kl: torch.Tensor | None = None
    """[tokens], differentiable: divergence of the whole distribution each token was drawn from to the reference's, at
    the temperature; None unless asked for."""


@runtime_checkable
class Objective(Protocol):
    """What an update minimises. Pure: it sees tensors, never a model or a process group."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the batch it reads, beyond `prompt_ids` and `response_ids`. A ragged one has one value per
        response token. Where `trajectory_id` is one of them it needs all rows of a trajectory in one micro-batch."""
        ...

    @property
    def mask(self) -> str | None:
        """The one of its columns that is not 0 at the response tokens that it takes for actions; None: at all."""
        ...

    @property
    def outputs(self) -> frozenset[str]:
        """Model outputs it needs, of {"log_probs", "entropy", "entropy_figure", "values", "full_kl"}."""
        ...

    def counts(self, batch: Batch) -> dict[str, float]:
        """This rank's denominators for one mini-batch. The engine sums them over the data-parallel ranks, once per
        optimizer step. The keys must not depend on the rows: a rank without rows returns zeros under the same
        keys."""
        ...

    def __call__(self, tokens: TokenBatch, counts: dict[str, float]) -> tuple[torch.Tensor, Measured]:
        """The loss of one micro-batch, a scalar divided by the *global* `counts`, so that the sum over all
        micro-batches and ranks is the objective; and metrics that merge by addition. It waits for no device."""
        ...


@runtime_checkable
class ScoringEngine(Protocol):
    """One model on the ranks of one mesh. Every method is collective: all ranks of the mesh call it in the same
    order, with their own rows, possibly none. Rows keep the order of the batch. An engine that follows routes reads
    them beside the tokens."""

    def log_probs(self, batch: Batch) -> Column:
        """Log-probability of every response token at the sampling temperature. Reads `prompt_ids` and `response_ids`;
        returns ragged float32, one value per response token."""
        ...

    def values(self, batch: Batch) -> Column:
        """The critic's value of the state before each response token. Reads and returns as `log_probs`."""
        ...


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A model that a run trained, where its parts are."""

    path: str
    """Path of its configuration: what the run began with."""
    state: StoragePath
    """What the engine that trained it wrote."""


class Shards(Protocol):
    """One rank's part of an engine as it was when it was copied."""

    def write(self, directory: StoragePath) -> None:
        """Make the directory and write it with an index of it (torch.distributed.checkpoint), once, and give its memory
        back. Any thread may, while the engine goes on. Raises StorageError."""
        ...


@runtime_checkable
class TrainEngine(ScoringEngine, Protocol):
    """A model that may be trained, written and handed on. Collective likewise."""

    def update(
        self, batch: Batch, objective: Objective, *, reference: ScoringEngine | None = None
    ) -> dict[str, Scalar]:
        """ONE optimizer step over one mini-batch, of which `batch` holds this rank's rows. The result does not depend
        on how rows are split over ranks or micro-batches. A step whose gradient norm is not finite is skipped on all
        ranks alike and counted in `update/skipped_total`. reference: what `full_kl` compares with; an engine of the
        same kind, model shape and ranks, or the base of this one."""
        ...

    def read_ahead(self, batch: Batch) -> None:
        """Begin to decode what rows show, which it is given next. From any thread, not collective."""
        ...

    def weights(
        self, dtype: torch.dtype | None = None, *, trained_only: bool = False
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors under their Hugging Face names, streamed: at most a bucket is gathered at a time, and a tensor
        is only good until the next one is asked for. Without a `dtype` they are in the precision of the job, or, where
        nothing is gathered, as they are trained: who copies them rounds them on the way. Tied weights come once. Every
        rank yields every tensor. trained_only: without a vision tower that is not trained. Collective: every rank must
        exhaust the iterator."""
        ...

    def weight_buckets(
        self, sources: Sequence[int], dtype: torch.dtype | None = None, *, trained_only: bool = False
    ) -> Iterator[Iterable[tuple[str, torch.Tensor]]]:
        """The tensors of `weights` shared out to `sources`, which are different ranks of the mesh: bucket b is gathered
        on `sources[b % len(sources)]` alone. Every rank yields as many items as the first source gets buckets: its own
        bucket of the round, or no tensors. A bucket is only good until the next is asked for. Collective."""
        ...

    def copy_shards(self) -> Shards:
        """This rank's part of model, optimizer and schedule, copied to host memory: a checkpoint of what is now. Not
        collective."""
        ...

    def load(self, directory: StoragePath, *, weights_only: bool = False) -> None:
        """Read the shards of all ranks, whose indexes were merged, on any number of ranks; `weights_only` leaves
        optimizer and schedule at their start. Raises StorageError when it is missing, damaged or of another model."""
        ...

    def held_bytes(self) -> int:
        """What `sleep` would give back now: nothing on CPUs, where what sleeps would lie in the same memory. Not
        collective."""
        ...

    def sleep(self) -> None:
        """Let what only an optimizer step needs wait in the memory of the host; the next one brings it back. All else
        may be asked meanwhile. Not collective, idempotent."""
        ...


class CopyOfRanks(Protocol):
    """The ranks that hold the same rows as this one, itself among them. What is not the work of an engine their leader
    does for all: a time-out on one of them alone would let them go different ways."""

    @property
    def is_leader(self) -> bool: ...
    @property
    def has_peers(self) -> bool: ...

    def from_leader(
        self, shape: tuple[int, ...], work: Callable[[], tuple[NDArray[np.float64], Rest]]
    ) -> tuple[NDArray[np.float64], Rest | None]:
        """What `work` gives on the leader, which alone calls it: the array of this shape on every rank, the rest on the
        leader only. Every rank of the copy calls this alike. Where `work` raises, peers raise PeerLost."""
        ...
