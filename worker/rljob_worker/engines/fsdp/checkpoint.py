"""Sharded checkpoints that another number of ranks can read.

torch's own coordination would send pickled plans between the ranks. Here every rank writes its shards with an index of
them, and rank 0 merges the indexes through the file system; a reader needs nobody.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from rljob_worker.engines.fsdp.shard_index import OwnShards, ShardWriter, merge_indexes
from rljob_worker.engines.fsdp.sharding import world_size
from rljob_worker.errors import StorageError

State = dict[str, dict[str, torch.Tensor]]


def write(state: State, directory: Path, group: dist.ProcessGroup | None) -> None:
    """Every rank writes its shards to `directory`. Collective."""
    rank = 0 if group is None else group.rank()
    with _storage_errors(directory):
        dcp.save(own(state, rank), storage_writer=ShardWriter(directory, rank), planner=OwnShards(), no_dist=True)
    wait_for_all(group)
    if rank == 0:
        with _storage_errors(directory):
            merge_indexes(directory, world_size(group))
    wait_for_all(group)


def own(state: State, rank: int) -> State:
    """What a rank writes: its shards; of what all ranks have alike rank 0 writes the one copy."""
    return {
        kind: {name: tensor for name, tensor in tensors.items() if rank == 0 or isinstance(tensor, DTensor)}
        for kind, tensors in state.items()
    }


def read(state: State, directory: Path) -> None:
    """Fill the tensors of `state` in place, whatever number of ranks wrote them."""
    if not (directory / ".metadata").is_file():
        raise StorageError(
            f"checkpoint {directory}: no .metadata in it; it was not written to its end, or is elsewhere"
        )
    try:
        with _single_process_is_fine():
            dcp.load(state, storage_reader=dcp.FileSystemReader(directory), no_dist=True)
    except (OSError, CheckpointException, RuntimeError, ValueError) as error:
        raise StorageError(
            f"checkpoint {directory}: cannot be read; it is damaged or of another model: {error}"
        ) from error


def wait_for_all(group: dist.ProcessGroup | None) -> None:
    if world_size(group) > 1:
        dist.barrier(group)


@contextmanager
def _storage_errors(directory: Path) -> Iterator[None]:
    """Turn a failed write into a StorageError."""
    try:
        with _single_process_is_fine():
            yield
    except (OSError, CheckpointException) as error:
        raise StorageError(f"checkpoint {directory}: cannot be written: {error}") from error


@contextmanager
def _single_process_is_fine() -> Iterator[None]:
    """torch warns whenever a checkpoint is not collective, and when a faster rank's index is there already."""
    with warnings.catch_warnings():
        for message in ("torch.distributed is disabled", "Detected an existing checkpoint"):
            warnings.filterwarnings("ignore", message=message, category=UserWarning)
        yield
