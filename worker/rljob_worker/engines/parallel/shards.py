"""What of a tensor lies on this rank, whether it is sharded or not."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard, sharing memory with `tensor`."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def num_shards(tensor: torch.Tensor) -> int:
    """Ranks that share out its rows: those of the last axis where replicas lie over the first."""
    return int(tensor.device_mesh.size(-1)) if isinstance(tensor, DTensor) else 1


def own_rows(tensor: torch.Tensor) -> slice:
    """Which rows of the whole tensor that shard is: FSDP cuts dim 0 into chunks of ceil(rows / ranks)."""
    rows = tensor.shape[0]
    if not isinstance(tensor, DTensor):
        return slice(0, rows)
    chunk = -(-rows // num_shards(tensor))
    start = min(rows, tensor.device_mesh.get_local_rank(tensor.device_mesh.ndim - 1) * chunk)
    return slice(start, min(rows, start + chunk))


def laid_out_like(tensor: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
    """`shard` as this rank's rows of a tensor that is spread over ranks as `tensor` is, sharing memory with it:
    DTensor.from_local would copy what waits in the memory of the host to the device of the mesh."""
    if not isinstance(tensor, DTensor):
        return shard
    whole = torch.empty((tensor.shape[0], *shard.shape[1:]), dtype=shard.dtype, device="meta")
    meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
    return DTensor(shard, DTensorSpec(tensor.device_mesh, tensor.placements, tensor_meta=meta), requires_grad=False)
