"""What a stage is to the runtime: rows in, columns out.

A stage sees only the rows its rank holds and never a process group: what it must know of other ranks comes through
`StageContext.reduce`. Metrics are returned, not logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rljob_worker.batch import Batch, Column
from rljob_worker.metrics.scalars import Scalars

if TYPE_CHECKING:
    import torch

    from rljob_api import RLJobSpec
    from rljob_api.pipeline.meshes import Mesh
    from rljob_api.planning.plan import Plan, StagePlan
    from rljob_worker.data.dataset import PromptDataset
    from rljob_worker.databuffer.client import StageLeases
    from rljob_worker.engines.parallel.mesh import ProcessMesh
    from rljob_worker.engines.protocols import CopyOfRanks, ScoringEngine, TrainEngine
    from rljob_worker.engines.rollout.protocol import RolloutEngine
    from rljob_worker.rewards.running.runner import RewardRunner
    from rljob_worker.stages.played.conversation_rollout import ConversationRollout
    from rljob_worker.stages.received_rows import ReceivedLeases

Reduce = Callable[["torch.Tensor"], "torch.Tensor"]
Exchange = Callable[[list["torch.Tensor"]], list["torch.Tensor"]]
Rest = TypeVar("Rest")


class Alone:
    """The copy of a rank that shares its rows with no other."""

    is_leader = True
    has_peers = False

    def from_leader(
        self, shape: tuple[int, ...], work: Callable[[], tuple[NDArray[np.float64], Rest]]
    ) -> tuple[NDArray[np.float64], Rest | None]:
        return work()


@dataclass(frozen=True, slots=True)
class StageContext:
    """One stage of one step, on one rank. The first four fields are what a user's function may rely on."""

    step: int
    """1-based."""
    seed: int
    """Seed of the job."""
    job: RLJobSpec
    """The job as it runs, defaults filled in."""
    decode: Callable[[np.ndarray], str]
    """Token ids to text, special tokens left out."""
    reduce: Reduce
    """Sums a float64 tensor over the copies of the stage's mesh, each with rows of its own; every rank must call it
    alike, and the ranks of a copy give the same."""
    dp_rank: int
    dp_size: int
    exchange: Exchange = list
    """Parts for every copy of the stage's mesh, in their order, for the parts of every copy; the leaders of all copies
    must call it alike."""
    copy: CopyOfRanks = Alone()
    leases: StageLeases | None = None
    """Leases of a stage whose ranks take what they draw as leases; None for others."""
    numbers: range | None = None
    """On a guest: the draw numbers of its lease, which are all that it draws."""
    received: ReceivedLeases | None = None
    """What guests made, where they run a stage of this group; None elsewhere."""

    def counted(self, metrics: Scalars) -> Scalars:
        """What this rank says of its rows: the leader speaks for the copy, times are every rank's own."""
        if self.copy.is_leader:
            return metrics
        return {name: scalar for name, scalar in metrics.items() if name.startswith("time/")}


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage hands on: the rows with their new columns, metrics to merge, rows worth showing to a person."""

    batch: Batch
    metrics: Scalars = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)


class Stage(Protocol):
    """One vertex of the DAG on one rank."""

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        """`batch` holds the columns the stage reads, `None` for the source. Returns the columns it writes."""
        ...


@runtime_checkable
class StatefulStage(Stage, Protocol):
    """A stage that remembers something between steps; the state is part of every checkpoint."""

    def state(self) -> dict[str, Any]:
        """In plain values that JSON holds."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """What `state` gave."""
        ...


@runtime_checkable
class RowKeepingStage(Stage, Protocol):
    """A stage that holds rows between steps; every rank's are part of every checkpoint."""

    def rows(self) -> Batch | None:
        """This rank's rows; None when no rank holds any."""
        ...

    def load_rows(self, parts: Sequence[Batch]) -> None:
        """What `rows` gave on one or several ranks, possibly on none."""
        ...


@dataclass(frozen=True, slots=True)
class Resources:
    """What a rank has built for its stages: only what its schedule needs."""

    plan: Plan
    train_engines: Mapping[str, TrainEngine]
    """By model."""
    rollout_engines: Mapping[str, RolloutEngine]
    """By model."""
    tokenizers: Mapping[str, Any] = field(default_factory=dict)
    """By policy."""
    datasets: Mapping[str, PromptDataset] = field(default_factory=dict)
    """By policy: its prompts as its tokenizer and chat template have them."""
    rewards: Mapping[str, RewardRunner] = field(default_factory=dict)
    """By policy; none on ranks that leave rewards to the leader of their copy."""
    meshes: Mapping[Mesh, ProcessMesh] = field(default_factory=dict)
    """Meshes of every engine and stage of the group."""
    base_models: Mapping[str, ScoringEngine] = field(default_factory=dict)
    """By model: what scores with the model under an adapter of another."""
    conversations: Mapping[str, ConversationRollout] = field(default_factory=dict)
    """By policy, what plays its conversations; none in jobs without, or where nothing is generated."""

    @property
    def scoring_engines(self) -> dict[str, ScoringEngine]:
        """By model: all that score, those that train among them."""
        return {**self.train_engines, **self.base_models}


BuildStage = Callable[["StagePlan", Resources], Stage]


def token_column(values: np.ndarray, like: Column) -> Column:
    """A ragged column with one value per token of `like`."""
    assert like.offsets is not None and len(values) == like.offsets[-1], "one value per response token"
    return Column(np.ascontiguousarray(values), like.offsets, values.dtype.name)
