"""One rank's part of every checkpoint: engines, what its stages remember, and rows that they hold."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from rljob_api.planning.plan import StagePlan
from rljob_api.planning.weights.versions import versions_in_flight
from rljob_worker.checkpoint.background import Background
from rljob_worker.checkpoint.init_from import initial_weights
from rljob_worker.checkpoint.state import GroupState
from rljob_worker.checkpoint.versions import Chunk, KeptVersion, kept_versions, read_chunks
from rljob_worker.checkpoint.writer import RankFiles, RankPart, StageRows, engine_folder, read_rows
from rljob_worker.data.listing import DataIdentity, listing_to_json
from rljob_worker.engines.protocols import TrainEngine
from rljob_worker.errors import InvalidJob
from rljob_worker.runtime.control import Opening
from rljob_worker.runtime.setup.environment import WorkerEnvironment
from rljob_worker.stages.stage import RowKeepingStage, Stage, StatefulStage
from rljob_worker.storage.paths import StoragePath, storage_path
from rljob_worker.weights.buffers import BufferChunk, tensor_over
from rljob_worker.weights.sync import HeldVersion, KeptPart

log = logging.getLogger(__name__)


def weights_to_load(opening: Opening, init_from: str | None, engines: Sequence[str]) -> dict[str, StoragePath]:
    """By name, from where those of the trainable engines are loaded that do not begin with their model's files: from
    the checkpoint where the job goes on, or from that of another run when this one begins. Raises InvalidJob and
    StorageError."""
    if opening.checkpoint is not None:
        return {name: storage_path(opening.checkpoint) / "engines" / engine_folder(name) for name in engines}
    return {} if init_from is None else initial_weights(storage_path(init_from), engines)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Copied by all ranks at the end of the same step and written by a thread of each, read back by as many or by
    others; the lead commits them. One at a time is written: the next one waits for it."""

    environment: WorkerEnvironment
    trainable: Mapping[str, TrainEngine]
    """By engine name."""
    schedule: Sequence[tuple[StagePlan, Stage]]
    data: DataIdentity
    """What the group trains on; empty in a group that reads no data."""
    weights: Mapping[str, StoragePath] = field(default_factory=dict)
    """As `weights_to_load` has it."""
    writing: Background = field(default_factory=lambda: Background("checkpoint"))
    """Writing of the checkpoint before."""

    def restore(self, opening: Opening) -> GroupState:
        """Load engines and stages; or the weights of another run when this one begins."""
        if opening.checkpoint is None:
            self._begin_from_another_run()
            return GroupState()
        for name, folder in self.weights.items():
            self.trainable[name].load(folder)
        checkpoint = storage_path(opening.checkpoint)
        state = GroupState.read(checkpoint, self.environment.group)
        state.check_dataset(self.data)
        for plan, stage in self.schedule:
            if isinstance(stage, StatefulStage) and plan.name in state.stages:
                stage.load_state(state.stages[plan.name])
            if isinstance(stage, RowKeepingStage):
                dp_rank = plan.mesh.dp_rank(self.environment.rank)
                stage.load_rows(read_rows(checkpoint, plan.name, dp_rank, plan.mesh.dp))
        log.info("resumed from step %d (%s)", opening.step, checkpoint)
        return state

    def _begin_from_another_run(self) -> None:
        try:
            for name, folder in self.weights.items():
                self.trainable[name].load(folder, weights_only=True)
        except InvalidJob as error:
            raise InvalidJob(f"checkpoint.initFrom: {error}") from error

    def versions(self, opening: Opening) -> Iterator[tuple[int, KeptPart]]:
        """Those that the steps after the opening are drawn with and that its checkpoint keeps, ascending, and how a
        source reads its part of each."""
        spec = self.environment.plan.spec
        if opening.checkpoint is None or spec.checkpoint.versions == "Redraw":
            return
        checkpoint = storage_path(opening.checkpoint)
        for version in versions_in_flight(spec, opening.step):
            yield version, partial(read_part, checkpoint, version)

    def save(
        self,
        step: int,
        active_seconds: float,
        versions: Sequence[HeldVersion] = (),
        written: Callable[[], None] = lambda: None,
    ) -> None:
        """Copy this rank's part of the checkpoint of `step` and begin to write it. versions: that it keeps, which stay
        as they are until `written` is called. Raises StorageError where the one before could not be written."""
        self.writing.wait()
        kept = [KeptVersion(held.model, held.version, held.source, chunks_of(held)) for held in versions]
        environment = self.environment
        stages = {plan.name: stage.state() for plan, stage in self.schedule if isinstance(stage, StatefulStage)}
        state = GroupState(stages, self.data.fingerprint, active_seconds, listing_to_json(self.data.files))
        part = RankPart.copy(self.trainable, state.to_json(), self._held_rows(), kept)
        files = RankFiles(environment.home, environment.owner, environment.group, environment.rank)

        def write() -> None:
            try:
                files.write(step, part)
            finally:
                written()

        self.writing.start(write)

    def _held_rows(self) -> Iterator[StageRows]:
        """Rows that stages hold; of tensor-parallel peers one writes."""
        rank = self.environment.rank
        for plan, stage in self.schedule:
            if isinstance(stage, RowKeepingStage) and plan.mesh.is_row_leader(rank):
                rows = stage.rows()
                if rows is not None:
                    yield StageRows(plan.name, plan.mesh.dp_rank(rank), rows)


def chunks_of(held: HeldVersion) -> list[Chunk]:
    """As a checkpoint has them; nothing is copied."""
    return [(chunk.table, chunk.data.numpy()) for chunk in held.chunks]


def read_part(
    checkpoint: StoragePath, version: int, model: str, number: int, num_sources: int
) -> Iterator[BufferChunk]:
    """What source `number` of `num_sources` sends again of a version that a checkpoint keeps."""
    for table, data in read_chunks(kept_versions(checkpoint, model)[version], number, num_sources):
        yield BufferChunk(table, tensor_over(data))
