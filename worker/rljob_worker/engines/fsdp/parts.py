"""`Parts`: where the tensors of a model lie, and how they get whole again.

Over the ranks of `shards` every tensor is sharded by rows. Of a matrix that ranks split (see `tensor_parallel`) they
are the rows of one part, and other ranks have those of the others.
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
from rljob_worker.engines.tensor_split import TensorSplit, split_of


@dataclass(frozen=True, slots=True)
class Parts:
    """One rank's view of a model that is spread over the ranks of a mesh."""

    rank: int
    """In the mesh."""
    everyone: dist.ProcessGroup | None
    """All who have a part; None where this rank has the whole model."""
    shards: dist.ProcessGroup | None
    matrices: dist.ProcessGroup | None

    @staticmethod
    def of(mesh: ProcessMesh) -> Parts:
        return Parts(mesh.rank, mesh.group(*STAGE), mesh.group(*SHARDS), mesh.group("tp"))

    @property
    def num_ranks(self) -> int:
        return 1 if self.everyone is None else self.everyone.size()

    @property
    def split(self) -> TensorSplit | None:
        """Which part of matrices is this rank's, where they are split."""
        return split_of(self.matrices)

    def whole_shapes(self, named: Iterable[Named]) -> Iterator[Named]:
        """Tensors without memory that have shape and dtype of the whole ones."""
        for name, tensor in named:
            shape = tensor.shape if self.split is None else self.split.shape(name, tensor.shape)
            yield name, torch.empty(shape, dtype=tensor.dtype, device="meta")

    def everywhere(
        self, named: Iterable[Named], dtype: torch.dtype | None = None, bucket_bytes: int = BUCKET_BYTES
    ) -> Iterator[Named]:
        """See `full_tensors`."""
        return map(self._joined, full_tensors(named, self.shards, dtype, bucket_bytes))

    def buckets_at(
        self,
        named: Iterable[Named],
        sources: Sequence[int],
        dtype: torch.dtype | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> Iterator[Iterable[Named]]:
        """See `full_tensors.buckets_at`. Where matrices are split every rank helps to make every bucket, and those that
        are not its own it lets go, tensor by tensor."""
        if self.matrices is None:
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
        cut into parts of the matrix first, and each of them into rows."""
        if self.split is None:
            return tensor
        shape, dim = self.split.shape(name, tensor.shape), self.split.dim(name)
        ranks = torch.arange(self.num_ranks).view(-1, self.split.size).T
        mesh = DeviceMesh(tensor.device.type, ranks, _init_backend=False, _rank=self.rank)
        placements = (Replicate() if dim is None else Shard(dim), Shard(0))
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
        """A tensor of which this rank has its part of the matrix: the whole of it."""
        name, tensor = part
        dim = None if self.split is None else self.split.dim(name)
        if dim is None:
            return part
        assert self.matrices is not None
        everyone = tensor.new_empty(self.matrices.size() * tensor.numel())
        dist.all_gather_single(everyone, tensor.reshape(-1), group=self.matrices)
        return name, torch.cat([each.view(tensor.shape) for each in everyone.chunk(self.matrices.size())], dim)
