"""Which shard lies where: every rank's own index, and the one of the whole checkpoint that rank 0 makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.storage import WriteResult


class OwnShards(dcp.DefaultSavePlanner):  # type: ignore[misc]
    """Plans what one rank writes. That the shards of a tensor make it whole shows only when all indexes are merged."""

    def create_global_plan(self, all_plans: list[dcp.SavePlan]) -> tuple[list[dcp.SavePlan], Metadata]:
        plans, index = create_default_global_save_plan(all_plans)
        index.planner_data = self.mappings
        return plans, index


class ShardWriter(dcp.FileSystemWriter):  # type: ignore[misc]
    """Names files and index by the rank."""

    def __init__(self, directory: Path, of_rank: int) -> None:
        super().__init__(directory)
        self._of_rank = of_rank

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_writer(is_coordinator, rank=self._of_rank, use_collectives=False)


def merge_indexes(directory: Path, num_ranks: int) -> None:
    """Put one index, which any number of ranks reads, in the place of the ranks' own. Raises OSError."""
    reader = dcp.FileSystemReader(directory)
    whole = merged([reader.read_metadata(rank=rank) for rank in range(num_ranks)])
    places = [WriteResult(index, place.length, place) for index, place in whole.storage_data.items()]
    dcp.FileSystemWriter(directory).finish(whole, [places])
    for rank in range(num_ranks):
        (directory / f"__{rank}.metadata").unlink()


def merged(parts: Sequence[Metadata]) -> Metadata:
    """The index of all tensors, each with the shards of every rank."""
    whole = Metadata({}, planner_data={}, storage_data={})
    for part in parts:
        for name, found in part.state_dict_metadata.items():
            tensor = TensorStorageMetadata(found.properties, found.size, [])
            whole.state_dict_metadata.setdefault(name, tensor).chunks.extend(found.chunks)
        whole.planner_data |= part.planner_data
        whole.storage_data |= part.storage_data
    return whole
