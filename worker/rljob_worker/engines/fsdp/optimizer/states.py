"""What an optimizer keeps of every weight, such as running means, in the number format of the job.

Float32    as they are; in Float64 where weights are
BFloat16   rounded to the nearest
Int8       a code for each number and a scale for each block of them (Dettmers et al. 2022,
           https://arxiv.org/abs/2110.02861): number = scale * table[code]. Blocks lie within rows, and are the least
           there are where ranks may split columns, so that which numbers share a scale follows from a parameter's
           name and shape, not from who has which part of it. What has no blocks, such as norms and biases, stays in
           Float32

torchao 0.18 has such an AdamW, which is not used: what it keeps in Int8, and where its blocks begin, depends on the
size of a rank's shard, so that checkpoints fit one number of ranks; means of squares round to 0, after which a small
gradient makes a step of any size; its step is compiled for each shape; and transformers imports it wherever it is
installed, three seconds of every worker's start. bitsandbytes has none for CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch

from rljob_api.catalogue.optimizers import OptimizerState
from rljob_api.memory.sizes import LEAST_STATE_BLOCK, STATE_BLOCK


@dataclass(frozen=True, slots=True)
class KeptState:
    """One state of a rank's part of a parameter, by rows."""

    kept: dict[str, torch.Tensor]
    """Its memory, by what follows its name in a checkpoint: all of it, or codes and scales [rows, blocks in a row]."""
    signed: bool

    def read(self, rows: slice, dtype: torch.dtype) -> torch.Tensor:
        """Some rows of it, in memory of their own."""
        if "" in self.kept:
            return self.kept[""][rows].to(dtype, copy=True)
        codes, scale = self.kept[".codes"][rows], self.kept[".scale"][rows]
        numbers = quantization_table(self.signed, codes.device).index_select(0, codes.flatten().int())
        return numbers.view(*scale.shape, -1).mul_(scale.unsqueeze(-1)).view(codes.shape).to(dtype)

    def write(self, rows: slice, numbers: torch.Tensor) -> None:
        """Round what has become of them."""
        if "" in self.kept:
            self.kept[""][rows] = numbers
            return
        codes, scale = self.kept[".codes"][rows], self.kept[".scale"][rows]
        blocks = numbers.float().reshape(*scale.shape, -1)
        scale.copy_(blocks.abs().amax(-1))
        values = quantization_table(self.signed, codes.device)
        between = (values[1:] + values[:-1]) / 2
        normal = blocks / scale.clamp_min(torch.finfo(scale.dtype).tiny).unsqueeze(-1)
        codes.copy_(torch.bucketize(normal, between, out_int32=True).view(codes.shape))


def states_of(
    local: torch.Tensor, declared: Iterable[OptimizerState], number_format: str, *, by_columns: bool = False
) -> dict[str, KeptState]:
    """States of 0, by name. by_columns: see `block_of`."""
    block = block_of(local.shape, by_columns=by_columns) if number_format == "Int8" else None
    if block is None:
        dtype = torch.bfloat16 if number_format == "BFloat16" else local.dtype
        return {item.name: KeptState({"": torch.zeros_like(local, dtype=dtype)}, item.signed) for item in declared}
    result = {item.name: KeptState(_in_blocks(local, block), item.signed) for item in declared}
    for state in result.values():
        state.write(slice(None), torch.zeros_like(local))
    return result


def block_of(shape: torch.Size, *, by_columns: bool = False) -> int | None:
    """How many numbers of a row share a scale; None where a tensor of this shape is not kept in blocks. by_columns:
    whether ranks may split its columns, of which each then has whole blocks."""
    if len(shape) < 2:
        return None
    block = math.gcd(math.prod(shape[1:]), LEAST_STATE_BLOCK if by_columns else STATE_BLOCK)
    return block if block >= LEAST_STATE_BLOCK else None


def _in_blocks(local: torch.Tensor, block: int) -> dict[str, torch.Tensor]:
    codes = torch.zeros(local.shape, dtype=torch.uint8, device=local.device)
    scale = torch.zeros((local.shape[0], math.prod(local.shape[1:]) // block), device=local.device)
    return {".codes": codes, ".scale": scale}


@cache
def quantization_table(signed: bool, device: torch.device) -> torch.Tensor:
    """[256] float32, ascending: numbers from -1, or near 0, to 1, each power of ten in twice as many steps as the one
    below. Without a sign the least is 1e-7 and not 0: a mean of squares of 0 would divide the next step by 0."""
    parts = []
    for power in range(7):
        ends = torch.linspace(0.1, 1.0, 2 ** (power + (not signed)) + 1, dtype=torch.float64)
        parts.append((ends[1:] + ends[:-1]) / 2 * 10.0 ** (power - 6))
    negative = [-part for part in parts[1:]] if signed else []
    ends = torch.tensor([-1.0, 0.0, 1.0] if signed else [1e-7, 1.0], dtype=torch.float64)
    return torch.cat([*parts, *negative, ends]).sort().values.to(device, torch.float32)
