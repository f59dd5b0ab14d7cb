"""Which shard lies where: every rank's own index, and the one of the whole checkpoint that rank 0 makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from rljob_worker.devices.copies import copies_on_host
from rljob_worker.engines.fsdp.checkpoint.place_files import PlaceReader, PlaceWriter
from rljob_worker.storage.paths import StoragePath


class OwnShards(dcp.DefaultSavePlanner):  # type: ignore[misc]
    """Plans what one rank writes, and gives it from copies. That the shards of a tensor make it whole shows only when
    all indexes are merged."""

    def copy(self, tensors: Mapping[str, Any]) -> None:
        """Plan them and copy them to host memory; the tensors themselves are not looked at again."""
        self.set_up_planner(tensors, is_coordinator=True)
        self.create_local_plan()
        shards = {item.index: super(OwnShards, self).resolve_data(item) for item in self.plan.items}
        self._copies = dict(zip(shards, copies_on_host(list(shards.values())), strict=True))
        self.state_dict: dict[str, Any] = {}

    def create_global_plan(self, all_plans: list[dcp.SavePlan]) -> tuple[list[dcp.SavePlan], Metadata]:
        plans, index = create_default_global_save_plan(all_plans)
        index.planner_data = self.mappings
        return plans, index

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        """A copy, whose memory is free once it is written."""
        return self._copies.pop(write_item.index)


class ShardWriter(PlaceWriter):
    """Names files and index by the rank."""

    def __init__(self, directory: StoragePath, of_rank: int) -> None:
        super().__init__(directory)
        self._of_rank = of_rank

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_writer(is_coordinator, rank=self._of_rank, use_collectives=False)


def write_shards(planner: OwnShards, directory: StoragePath, rank: int) -> None:
    """Write what was copied, and this rank's index of it. Once; in any thread. Raises OSError."""
    writer = ShardWriter(directory, rank)
    writer.set_up_storage_writer(is_coordinator=True)
    plans, index = planner.create_global_plan([writer.prepare_local_plan(planner.plan)])
    (plan,) = writer.prepare_global_plan(plans)
    writer.finish(index, [writer.write_data(plan, planner).wait()])


def merge_indexes(directory: StoragePath) -> None:
    """Put one index, which any number of ranks reads, in the place of those that ranks wrote. Raises OSError."""
    own: list[StoragePath] = sorted(directory.glob("__*.metadata"), key=str)
    if not own:
        return
    reader = PlaceReader(directory)
    whole = merged_metadata([reader.read_metadata(rank=_rank_of(path)) for path in own])
    places = [WriteResult(index, place.length, place) for index, place in whole.storage_data.items()]
    PlaceWriter(directory).finish(whole, [places])
    for path in own:
        path.unlink()


def _rank_of(index: StoragePath) -> int:
    """`__12.metadata` is rank 12's."""
    return int(index.name.removeprefix("__").removesuffix(".metadata"))


def merged_metadata(parts: Sequence[Metadata]) -> Metadata:
    """The index of all tensors, each with the shards of every rank."""
    whole = Metadata({}, planner_data={}, storage_data={})
    for part in parts:
        for name, result in part.state_dict_metadata.items():
            tensor = TensorStorageMetadata(result.properties, result.size, [])
            whole.state_dict_metadata.setdefault(name, tensor).chunks.extend(result.chunks)
        whole.planner_data |= part.planner_data
        whole.storage_data |= part.storage_data
    return whole
