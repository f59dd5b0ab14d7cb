"""Sharded checkpoints that another number of ranks can read.

torch's own coordination would send pickled plans between the ranks. Here every rank copies its shards and writes the
copies with an index of them, and the committer of the checkpoint merges the indexes; a reader needs nobody.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from rljob_worker.engines.fsdp.checkpoint.place_files import PlaceReader
from rljob_worker.engines.fsdp.checkpoint.shard_index import OwnShards, write_shards
from rljob_worker.engines.fsdp.optimizer.sharded import NUM_STEPS
from rljob_worker.engines.fsdp.tensors.parts import Parts
from rljob_worker.engines.models import Adapter
from rljob_worker.engines.parallel.shards import local_part
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.storage.files import read_if_there
from rljob_worker.storage.paths import StoragePath

State = dict[str, dict[str, torch.Tensor]]

_MODEL = "model."
"""Before the names of weights, where those of the optimizer have another prefix."""

_ADAPTER = "adapter.json"
"""Next to the shards of a checkpoint that holds an adapter in place of a whole model: which one."""


@dataclass(frozen=True, slots=True)
class CopiedShards:
    """One rank's part of a state as it was: `protocols.Shards`."""

    rank: int
    shards: OwnShards
    adapter: Adapter | None

    @staticmethod
    def of(state: State, parts: Parts, adapter: Adapter | None = None) -> CopiedShards:
        shards = OwnShards()
        shards.copy(own(state, parts))
        return CopiedShards(parts.rank, shards, adapter)

    def write(self, directory: StoragePath) -> None:
        with _storage_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
            if self.rank == 0 and self.adapter is not None:
                (directory / _ADAPTER).write_text(json.dumps(self.adapter.to_json()))
            write_shards(self.shards, directory, self.rank)


def own(state: State, parts: Parts) -> State:
    """What a rank writes: its shards; of what several ranks of a replica have alike the first of them writes the one
    copy. Replicas, which have all alike, write as many bytes each: a tensor is written by the one that has least."""
    mine: State = {kind: {} for kind in state}
    written = [0] * parts.num_replicas
    for kind, tensors in state.items():
        for name, tensor in tensors.items():
            if parts.speaks_for(name) and _is_first(name, tensor, parts):
                replica = written.index(min(written))
                written[replica] += local_part(tensor).nbytes
                if replica == parts.replica:
                    mine[kind][name] = tensor
    return mine


def _is_first(name: str, tensor: torch.Tensor, parts: Parts) -> bool:
    """Whether this rank is the first of those of a replica that have the same part of a tensor."""
    if name == NUM_STEPS:
        return parts.rank % parts.num_ranks_of_replica == 0
    if not isinstance(tensor, DTensor):
        return parts.rank_of_layers == 0
    place = tensor.device_mesh.get_coordinate()
    assert place is not None, "a tensor of other ranks"
    return all(here == 0 for here, placement in zip(place, tensor.placements, strict=True) if placement.is_replicate())


class Written(PlaceReader):
    """An engine's checkpoint that is there whole. Its index is read once, its tensors as they are asked for."""

    def __init__(self, directory: StoragePath, adapter: Adapter | None) -> None:
        """adapter: what it is to hold in place of a whole model. Raises InvalidJob for another, StorageError."""
        super().__init__(directory)
        self._directory = directory
        if not (directory / ".metadata").is_file():
            raise StorageError(
                f"checkpoint {directory}: no .metadata in it; it was not written to its end, or is elsewhere"
            )
        _require_same(adapter_in(directory), adapter, directory)
        with self._reading():
            self._index = super().read_metadata()

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._index

    @property
    def tensors(self) -> dict[str, TensorStorageMetadata]:
        """The tensors of the model, by their names in it."""
        entries = self._index.state_dict_metadata.items()
        return {name.removeprefix(_MODEL): item for name, item in entries if name.startswith(_MODEL)}

    def require_model(self, wanted: Mapping[str, torch.Tensor], *, is_pipeline_stage: bool = False) -> None:
        """That it is of a model with tensors of these names and shapes. is_pipeline_stage: and with others. Raises
        InvalidJob."""
        tensors = self.tensors
        _require_same_engine(tensors, wanted, self._directory)
        if difference := next(_differences(tensors, wanted, is_pipeline_stage=is_pipeline_stage), None):
            raise InvalidJob(f"checkpoint {self._directory}: it is of another model: {difference}")

    def fill(self, state: State) -> None:
        """Tensors in place, for any number of ranks that wrote them. Raises StorageError."""
        with self._reading(), _single_process_is_fine():
            dcp.load(state, storage_reader=self, no_dist=True)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, CheckpointException, RuntimeError, ValueError) as error:
            raise StorageError(
                f"checkpoint {self._directory}: cannot be read; it is damaged or of another model: {_reason(error)}"
            ) from error


def _reason(error: Exception) -> str:
    """In one line: torch gives every rank's error with where it arose."""
    if isinstance(error, CheckpointException):
        error = next((item for item, _ in error.failures.values() if isinstance(item, Exception)), error)
    return str(error).partition("\n")[0]


def read(
    state: State, directory: StoragePath, adapter: Adapter | None = None, *, is_pipeline_stage: bool = False
) -> None:
    """Fill the tensors of `state` in place. is_pipeline_stage: they are of some of the layers. Raises InvalidJob for
    those of another model or adapter, StorageError."""
    written = Written(directory, adapter)
    written.require_model(state["model"], is_pipeline_stage=is_pipeline_stage)
    written.fill(state)


def adapter_in(directory: StoragePath) -> Adapter | None:
    """Which adapter a checkpoint holds; None for one of a whole model. Raises StorageError."""
    text = read_if_there(directory / _ADAPTER)
    return None if text is None else Adapter.from_json(json.loads(text))


def _require_same(result: Adapter | None, wanted: Adapter | None, directory: StoragePath) -> None:
    if result == wanted:
        return
    if result is None:
        raise InvalidJob(
            f"checkpoint {directory}: it holds a whole model, and this job trains an adapter; `rljob export` makes a "
            "directory of it that models[].path may name"
        )
    if wanted is None:
        raise InvalidJob(
            f"checkpoint {directory}: it holds an adapter of {result.base!r}, and this job trains a whole model; "
            "`rljob export --merged` makes a directory of it that models[].path may name"
        )
    raise InvalidJob(f"checkpoint {directory}: it holds another adapter: {', '.join(result.differences(wanted))}")


def _require_same_engine(result: Iterable[str], wanted: Iterable[str], directory: StoragePath) -> None:
    """Compare names and shapes of a checkpoint's tensors with those of the model."""
    written, own = _engine_of(result), _engine_of(wanted)
    if written != own:
        raise InvalidJob(
            f"checkpoint {directory}: training.engine {written} wrote it, and this job has {own}; write {written}, "
            "or make a directory of it that models[].path may name: `rljob export`"
        )


def _differences(
    result: Mapping[str, TensorStorageMetadata], wanted: Mapping[str, torch.Tensor], *, is_pipeline_stage: bool
) -> Iterator[str]:
    """How a checkpoint's model is not the job's. A model of fewer layers would find all it asks for."""
    if not is_pipeline_stage and (extra := sorted(result.keys() - wanted)):
        yield f"it holds {len(extra)} tensors that this job's model does not have, {extra[0]} among them"
    if missing := sorted(wanted.keys() - result):
        yield f"this job's model has {len(missing)} tensors that it does not hold, {missing[0]} among them"
    for name, tensor in wanted.items():
        if name in result and result[name].size != tensor.shape:
            yield f"{name} is {list(result[name].size)} there and {list(tensor.shape)} in this job"


def _engine_of(names: Iterable[str]) -> str:
    """Whether the matrices of this state have such names."""
    return "Megatron" if any(".linear_qkv." in name for name in names) else "FSDP"


@contextmanager
def _storage_errors(directory: StoragePath) -> Iterator[None]:
    """Turn a failed write, which torch may answer with an error of its own, into a StorageError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise StorageError(f"checkpoint {directory}: cannot be written: {error}") from error


@contextmanager
def _single_process_is_fine() -> Iterator[None]:
    """torch warns whenever a checkpoint is read by a process that asks nobody else."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield
