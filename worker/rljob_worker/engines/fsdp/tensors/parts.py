"""`Parts`: where the tensors of a model lie, and who has them together.

Over the ranks that have the same of it every tensor is sharded by rows. Of one that ranks split (see `split`) they are
the rows of one part, and other ranks have those of the others. Where there are replicas, each has all of it, and makes
tensors whole on its own: its ranks are a run of those of the mesh, numbered alike in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from rljob_worker.engines.fsdp.tensors.buckets import Named, Scattered
from rljob_worker.engines.fsdp.tensors.pipeline_stages import PipelineStages
from rljob_worker.engines.parallel.mesh import ProcessMesh
from rljob_worker.engines.parallel.mesh_ranks import EVERYONE, LAYERS, SHARDS
from rljob_worker.engines.parallel.shards import local_part
from rljob_worker.engines.parallel.split import Split


@dataclass(frozen=True, slots=True)
class Parts:
    """One rank's view of a model that is spread over the ranks of a mesh."""

    rank: int
    """In the mesh."""
    everyone: dist.ProcessGroup | None
    """All who have a part, of any replica; None where this rank is alone with its model."""
    shards: dist.ProcessGroup | None
    """The ranks of its replica that would have the same as this one, and shard it."""
    tensor_group: dist.ProcessGroup | None
    """The tensor-parallel group: ranks that split the tensor_group of layers, if any do."""
    experts: dist.ProcessGroup | None
    """The expert-parallel group: ranks that split its experts."""
    expert_shards: dist.ProcessGroup | None
    """The ranks with the same experts, where they are split."""
    layers: dist.ProcessGroup | None = None
    """The ranks of its replica with a part of the same layers; all of it, except where there are pipeline stages."""
    pipeline: dist.ProcessGroup | None = None
    """The ranks of this copy with other layers, and the same part of them."""
    replicas: dist.ProcessGroup | None = None
    """The data-parallel replicas: ranks that have the same as this one in other replicas."""
    device: torch.device = torch.device("cpu")
    """Where ranks meet."""
    pipeline_stages: PipelineStages | None = None
    """Which of these has which tensor."""

    @staticmethod
    def of(mesh: ProcessMesh) -> Parts:
        return Parts(
            rank=mesh.rank,
            everyone=mesh.group(*EVERYONE),
            shards=mesh.group(*SHARDS),
            tensor_group=mesh.group("tp"),
            experts=mesh.group("ep"),
            expert_shards=mesh.group("edp"),
            layers=mesh.group(*LAYERS),
            pipeline=mesh.group("pp"),
            replicas=mesh.group("rp"),
            device=mesh.device,
        )

    @property
    def num_ranks(self) -> int:
        return 1 if self.everyone is None else self.everyone.size()

    @property
    def num_replicas(self) -> int:
        return 1 if self.replicas is None else self.replicas.size()

    @property
    def num_ranks_of_replica(self) -> int:
        return self.num_ranks // self.num_replicas

    @property
    def replica(self) -> int:
        """The number of this rank's."""
        return self.rank // self.num_ranks_of_replica

    @property
    def rank_of_layers(self) -> int:
        """Among those with a part of the same layers."""
        return 0 if self.layers is None else self.layers.rank()

    @property
    def split(self) -> Split:
        return Split.over(self.tensor_group, self.experts)

    def scattered(self, named: Iterable[Named]) -> Iterator[Scattered]:
        """Parameters, or something of their shapes, as they lie on the ranks."""
        split = self.split
        return (Scattered(name, tensor, split.share(name)) for name, tensor in named)

    def everything(self, named: Iterable[Named]) -> Iterator[Scattered]:
        """The named tensors, and where there are pipeline stages the tensors of all of them, whole and without
        memory."""
        return self.scattered(named) if self.pipeline_stages is None else self.pipeline_stages.everything()

    def speaks_for(self, name: str) -> bool:
        """Whether this rank's stage counts, writes and sends what it has of a tensor, which another may have too."""
        return self.pipeline_stages is None or self.pipeline_stages.speaks_for(name)

    def holders(self, *, is_split: bool) -> dist.ProcessGroup | None:
        """The ranks that together have a tensor whole: of one that is split all with the same layers, else those with
        the same part as this one, of which there is another group for each part."""
        return self.layers if is_split else self.shards

    def is_of_this_replica(self, source: int) -> bool:
        return source // self.num_ranks_of_replica == self.replica

    def gives(self, source: int, *, is_split: bool) -> bool:
        """Whether this rank is among the holders of whom `source` is one."""
        num_parts = self.split.tensor_group[1]
        return self.is_of_this_replica(source) and (is_split or source % num_parts == self.rank % num_parts)

    def place(self, source: int, *, is_split: bool) -> int:
        """The number of a rank among its holders."""
        place = source % self.num_ranks_of_replica
        return place if is_split else place // self.split.tensor_group[1]

    def placed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """What this rank has of a parameter, or of something of its shape, as a part of the whole one, sharing memory:
        split first, and each part cut into rows. Over the ranks of a replica: others do not get them."""
        share = self.split.share(name)
        num_parts = self.split.tensor_group[1] if share is None else share.size
        if num_parts == self.num_replicas == 1:
            return tensor
        shape = tensor.shape if share is None else share.shape(tensor.shape)
        num_ranks = 1 if self.layers is None else self.layers.size()
        ranks = torch.arange(num_ranks).view(-1, num_parts).T
        mesh = DeviceMesh(tensor.device.type, ranks, _init_backend=False, _rank=self.rank_of_layers)
        placements = (Replicate() if share is None else Shard(share.dim), Shard(0))
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(local_part(tensor), mesh, placements, run_check=False, shape=shape, stride=stride)
