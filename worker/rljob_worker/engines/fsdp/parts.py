"""`Parts`: where the tensors of a model lie, and how they get whole again.

Over the ranks that have the same of it every tensor is sharded by rows. Of one that ranks split (see `split`) they are
the rows of one part, and other ranks have those of the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from rljob_api.memory.training import BUCKET_BYTES
from rljob_worker.engines.fsdp.full_tensors import Named, buckets, buckets_at, full_tensors
from rljob_worker.engines.mesh import ProcessMesh
from rljob_worker.engines.mesh_ranks import SHARDS, STAGE
from rljob_worker.engines.shards import local_part
from rljob_worker.engines.split import Split


@dataclass(frozen=True, slots=True)
class Parts:
    """One rank's view of a model that is spread over the ranks of a mesh."""

    rank: int
    """In the mesh."""
    everyone: dist.ProcessGroup | None
    """All who have a part; None where this rank has the whole model."""
    shards: dist.ProcessGroup | None
    matrices: dist.ProcessGroup | None
    """Those that split the matrices of layers, if any do."""
    experts: dist.ProcessGroup | None
    """Those that split its experts."""
    expert_shards: dist.ProcessGroup | None
    """Those with the same experts, where they are split."""

    @staticmethod
    def of(mesh: ProcessMesh) -> Parts:
        groups = (mesh.group(*axes) for axes in (STAGE, SHARDS, ("tp",), ("ep",), ("edp",)))
        return Parts(mesh.rank, *groups)

    @property
    def num_ranks(self) -> int:
        return 1 if self.everyone is None else self.everyone.size()

    @property
    def split(self) -> Split:
        return Split.over(self.matrices, self.experts)

    def whole_shapes(self, named: Iterable[Named]) -> Iterator[Named]:
        """Tensors without memory that have shape and dtype of the whole ones."""
        for name, tensor in named:
            share = self.split.share(name)
            shape = tensor.shape if share is None else share.shape(tensor.shape)
            yield name, torch.empty(shape, dtype=tensor.dtype, device="meta")

    def everywhere(
        self, named: Iterable[Named], dtype: torch.dtype | None = None, bucket_bytes: int = BUCKET_BYTES
    ) -> Iterator[Named]:
        """See `full_tensors`."""
        return map(self._joined, full_tensors(named, dtype, bucket_bytes))

    def buckets_at(
        self,
        named: Iterable[Named],
        sources: Sequence[int],
        dtype: torch.dtype | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> Iterator[Iterable[Named]]:
        """See `full_tensors.buckets_at`. Where something is split every rank helps to make every bucket, and those that
        are not its own it lets go, tensor by tensor."""
        if not self.split.is_any:
            return buckets_at(named, self.shards, sources, dtype, bucket_bytes)
        return self._buckets_at(dict(named), sources, dtype, bucket_bytes)

    def tensors_at(
        self,
        named: Iterable[Named],
        sources: Sequence[int],
        dtype: torch.dtype | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> Iterator[Named]:
        """What `buckets_at` yields, tensor after tensor."""
        return chain.from_iterable(self.buckets_at(named, sources, dtype, bucket_bytes))

    def placed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """What this rank has of a parameter, or of something of its shape, as a part of the whole one, sharing memory:
        split first, and each part cut into rows."""
        share = self.split.share(name)
        num_parts = self.split.matrices[1] if share is None else share.size
        if num_parts == 1:
            return tensor
        shape = tensor.shape if share is None else share.shape(tensor.shape)
        ranks = torch.arange(self.num_ranks).view(-1, num_parts).T
        mesh = DeviceMesh(tensor.device.type, ranks, _init_backend=False, _rank=self.rank)
        placements = (Replicate() if share is None else Shard(share.dim), Shard(0))
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(local_part(tensor), mesh, placements, run_check=False, shape=shape, stride=stride)

    def _buckets_at(
        self, named: dict[str, torch.Tensor], sources: Sequence[int], dtype: torch.dtype | None, bucket_bytes: int
    ) -> Iterator[Iterable[Named]]:
        rest = buckets(self.whole_shapes(named.items()), bucket_bytes, dtype)
        while together := list(islice(rest, len(sources))):
            own: list[Named] = []
            for bucket, source in zip(together, sources, strict=False):
                parts = ((name, named[name]) for name, _ in bucket.tensors)
                whole = self.everywhere(parts, bucket.dtype, bucket_bytes)
                if source == self.rank:
                    own = [(name, tensor.clone()) for name, tensor in whole]
                else:
                    deque(whole, maxlen=0)
            yield own

    def _joined(self, part: Named) -> Named:
        """A tensor of which this rank has its part: the whole of it."""
        name, tensor = part
        share = self.split.share(name)
        if share is None:
            return part
        group = self.matrices if share.axis == "tp" else self.experts
        everyone = tensor.new_empty(share.size * tensor.numel())
        dist.all_gather_single(everyone, tensor.reshape(-1), group=group)
        return name, torch.cat([each.view(tensor.shape) for each in everyone.chunk(share.size)], share.dim)
