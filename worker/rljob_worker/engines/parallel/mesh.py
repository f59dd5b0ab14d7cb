"""Process groups by axis, tensor-parallel and data-parallel groups among them: the one place that creates them, and the
collectives over them.

meshes = build_meshes([engine.mesh, stage.mesh], rank, device, deadline_seconds=600)
mesh = meshes[stage.mesh]
mesh.group("dp")                   # None where this rank is alone: no collective is worth its start then
mesh.sum(rewards)                  # over the copies, the same bits on every rank
mesh.from_leader((num_rows,), work)  # one rank of the copy works, all have what it found
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.engines.parallel.mesh_ranks import COPY, Axis, meetings, ranks_over
from rljob_worker.errors import PeerLost

Rest = TypeVar("Rest")
Array = NDArray[np.float64]


class ProcessMesh:
    """A mesh as one of its ranks sees it."""

    def __init__(
        self, mesh: Mesh, rank: int, device: torch.device, groups: Mapping[tuple[int, ...], dist.ProcessGroup]
    ) -> None:
        """groups: by ranks of the world, ascending; of every meeting of more than one rank."""
        self.mesh = mesh
        self.rank = rank
        self.device = device
        self._groups = {frozenset(axes): groups.get(ranks) for axes, ranks in meetings(mesh, rank)}

    @property
    def is_leader(self) -> bool:
        """Whether this rank does for its copy what is not the engine's work."""
        return self.mesh.is_row_leader(self.rank)

    @property
    def has_peers(self) -> bool:
        """Whether the copy has other ranks than this one."""
        return self.group(*COPY) is not None

    def group(self, *axes: Axis) -> dist.ProcessGroup | None:
        """The ranks over one axis, COPY or SHARDS; None where there is no other than this one."""
        return self._groups[frozenset(axes)]

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over copies of a small tensor that is alike in a copy; every rank gives and gets it.

        Leaders add up and broadcast to their peers: collectives of two groups may add in another order, and peers whose
        sums differ in their last bit go different ways from there."""
        copies, peers = self.group("dp"), self.group(*COPY)
        if copies is None:
            return values
        summed = values.to(self.device, copy=True)
        if self.is_leader:
            dist.all_reduce(summed, group=copies)
        if peers is not None:
            dist.broadcast(summed, group=peers, group_src=0)
        return summed.to(values.device)

    def exchange(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What every copy has for this one, in the order of copies. parts: [rows, ...] for each copy, all of one type
        and shape but for the number of rows. Leaders alone call it."""
        copies = self.group("dp")
        if copies is None:
            return list(parts)
        wanted = torch.tensor([len(part) for part in parts], device=self.device)
        coming = torch.empty_like(wanted)
        dist.all_to_all_single(coming, wanted, group=copies)
        own = torch.cat(list(parts)).to(self.device)
        result = own.new_empty((int(coming.sum()), *own.shape[1:]))
        dist.all_to_all_single(result, own, coming.tolist(), wanted.tolist(), group=copies)
        return list(result.to(parts[0].device).split(coming.tolist()))

    def range_in_copy(self, value: int) -> tuple[int, int]:
        """The least and the largest of what the ranks of this copy say, below 2**62."""
        peers = self.group(*COPY)
        if peers is None:
            return value, value
        said = torch.tensor([value, -value], dtype=torch.int64, device=self.device)
        dist.all_reduce(said, op=dist.ReduceOp.MAX, group=peers)
        high, low = said.tolist()
        return -low, high

    def from_leader(self, shape: tuple[int, ...], work: Callable[[], tuple[Array, Rest]]) -> tuple[Array, Rest | None]:
        """What `work` gives on this copy's leader, which alone calls it: the array on every rank, float64 of `shape`,
        and the rest on the leader only.

        Where it raises, the leader goes on with that error and its peers get PeerLost: they end together.
        """
        peers = self.group(*COPY)
        if peers is None:
            return work()
        message, rest = torch.zeros(1 + math.prod(shape), dtype=torch.float64), None
        try:
            if self.is_leader:
                result, rest = work()
                assert result.shape == shape, f"an array of {result.shape} in place of {shape}"
                message[0], message[1:] = 1.0, torch.from_numpy(result.reshape(-1))
        finally:  # an error too, or peers would wait for what never comes
            message = message.to(self.device)
            dist.broadcast(message, group=peers, group_src=0)
        if not message[0]:
            first = ranks_over(self.mesh, self.rank, COPY)[0]
            raise PeerLost(f"rank {first}, which works for the copy of rank {self.rank}, failed; its log says why")
        return message[1:].cpu().numpy().reshape(shape), rest


def build_meshes(
    meshes: Iterable[Mesh], rank: int, device: torch.device, *, deadline_seconds: float
) -> dict[Mesh, ProcessMesh]:
    """Every mesh once, over the group's torch.distributed world; groups that two of them have in common, once as well.

    Collective: all ranks of the world build the same meshes in the same order. Only the members of a process group make
    it, so a rank makes a handful whatever the size of the world.
    """
    num_ranks = dist.get_world_size() if dist.is_initialized() else 1
    groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
    built: dict[Mesh, ProcessMesh] = {}
    for mesh in dict.fromkeys(meshes):
        assert mesh.size == num_ranks, f"a mesh of {mesh.size} ranks in a world of {num_ranks}"
        for _, ranks in meetings(mesh, rank):
            if len(ranks) > 1 and ranks not in groups:
                groups[ranks] = _group_of(ranks, deadline_seconds)
        built[mesh] = ProcessMesh(mesh, rank, device, groups)
    return built


def alone(device: torch.device) -> ProcessMesh:
    """The mesh of a process without a world."""
    return ProcessMesh(Mesh(), 0, device, {})


def single_rank_group() -> dist.ProcessGroup:
    """A process group of this rank only, for libraries that want one; the world is made where the process has none."""
    require_world()
    return _group_of((dist.get_rank(),), None)


def require_world() -> None:
    """Where the process is in no world, make it one of its own."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def group_beside(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """Another of the same ranks, whose collectives are in another queue. Collective over them, all of which are in as
    many groups as each other: torch calls a group after how many there are, and ranks that call it otherwise wait for
    each other in vain."""
    return dist.new_group(dist.get_process_group_ranks(group), use_local_synchronization=True)


def _group_of(ranks: tuple[int, ...], deadline_seconds: float | None) -> dist.ProcessGroup:
    if len(ranks) == dist.get_world_size():
        return dist.group.WORLD
    timeout = None if deadline_seconds is None else timedelta(seconds=deadline_seconds)
    return dist.new_group(list(ranks), timeout=timeout, use_local_synchronization=True)
