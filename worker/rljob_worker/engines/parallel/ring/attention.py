"""Attention of queries that stay over keys and values that go round a ring of ranks.

Liu et al., Ring Attention with Blockwise Transformers, https://arxiv.org/abs/2310.01889. Three ranks, by steps:

    rank 0   keys 0   keys 2   keys 1        while a rank computes with the keys that it has, they are on their way to
    rank 1   keys 1   keys 0   keys 2        the next rank, and those it will have then are arriving
    rank 2   keys 2   keys 1   keys 0

What each step gives is added up as online softmax does it (Milakov and Gimelshein, https://arxiv.org/abs/1805.02867).
The backward pass goes round once more and computes scores again, tile by tile, from the sums that the first kept; the
gradients of keys and values go round with them, and come home from the last rank.

A rank holds its own keys and values, those that it computes with and those that arrive, however many ranks there are.
Tiles are plain products: they know windows and bounds of scores, are exact in Float64 on any device, and are slower on
accelerators than a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rljob_worker.engines.attention.varlen import Formula
from rljob_worker.engines.packing import PackedRows
from rljob_worker.engines.parallel.exchange import Shift
from rljob_worker.engines.parallel.ring.tiles import Tile, Tokens, tiles

KEYS, GRADIENTS = 0, 1
"""What is on its way, both at once."""


@dataclass(frozen=True, slots=True)
class RingLayout:
    """An attention layout for tokens that are dealt out to a group in turn."""

    group: dist.ProcessGroup
    tokens: tuple[Tokens, ...]
    """Tokens of each rank."""
    on_device: torch.Tensor
    """[ranks, 3, tokens of one] the same: places, ends, positions."""

    @staticmethod
    def build(rows: PackedRows, num_tokens: int, group: dist.ProcessGroup) -> RingLayout:
        """num_tokens: of the pack, with pads: as many for every rank. In host memory."""
        everything = Tokens.of(rows, num_tokens)
        tokens = tuple(everything.dealt(rank, group.size()) for rank in range(group.size()))
        stacked = np.stack([np.stack([token.places, token.ends, token.positions]) for token in tokens])
        return RingLayout(group, tokens, torch.from_numpy(stacked).to(torch.int32))

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, formula: Formula) -> torch.Tensor:
        # heads that ask one key head side by side, so that a tile is one product: [key heads, tokens, asking, head_dim]
        queries = query[0].unflatten(0, (key.shape[1], -1)).transpose(1, 2).contiguous()
        out: torch.Tensor = _Ring.apply(queries, torch.stack([key[0], value[0]]), self, formula)
        return out.transpose(0, 1).flatten(1, 2)[None]

    def tiles(self, rank: int, formula: Formula) -> Iterator[tuple[Tile, torch.Tensor | None]]:
        """Tiles of this rank's queries and that one's keys, each with what is seen, [queries, 1, keys]; None for
        all."""
        own = self.group.rank()
        for tile in tiles(self.tokens[own], self.tokens[rank], formula.window):
            seen = None if tile.sees_all else self._seen(own, rank, tile, formula.window)
            yield tile, seen

    def _seen(self, own: int, rank: int, tile: Tile, window: int | None) -> torch.Tensor:
        places, _, positions = self.on_device[own, :, tile.queries, None, None]
        key_places, ends, key_positions = self.on_device[rank, :, tile.keys]
        seen = (key_places <= places) & (places < ends)
        return seen if window is None else seen & (positions - key_positions < window)


class _Ring(torch.autograd.Function):  # type: ignore[misc]
    """queries [key heads, tokens, asking, head_dim] and block [2, key heads, tokens, head_dim], this rank's keys and
    values -> what queries get, as they are."""

    @staticmethod
    def forward(
        ctx: Any, queries: torch.Tensor, block: torch.Tensor, layout: RingLayout, formula: Formula
    ) -> torch.Tensor:
        sums = _Sums(queries)
        for rank, (keys, values) in _passing(block, layout.group):
            for tile, seen in layout.tiles(rank, formula):
                scores = _scores(queries[:, tile.queries], keys[:, tile.keys], formula)
                if seen is not None:
                    scores.masked_fill_(~seen, -torch.inf)
                sums.add(tile.queries, scores, values[:, tile.keys])
        out, total = sums.finished()
        out = out.to(queries.dtype)
        ctx.save_for_backward(queries, block, out, total)
        ctx.layout, ctx.formula = layout, formula
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        queries, block, out, total = ctx.saved_tensors
        back = _Backward(queries, gradients[0], out, total, ctx.layout, ctx.formula)
        home: Shift | None = None
        for rank, visiting in _passing(block, ctx.layout.group):
            of_block = back.through(rank, visiting)
            if home is not None:
                of_block += home.arrived()
                home = None  # what was sent is let go of before more is
            home = Shift.start(of_block, ctx.layout.group, GRADIENTS)
        assert home is not None
        return back.of_queries.to(queries.dtype), home.arrived().to(block.dtype), None, None


class _Backward:
    """The gradients of this rank's queries, and of keys and values that they met.

    With scores S = f(factor Q K'), weights P = exp(S - total) and output O = P V, element by element where no product
    is written (Dao et al., FlashAttention, https://arxiv.org/abs/2205.14135, appendix B.4):

        dV = P' dO      dS = factor f' P (dO V' - rowsum(dO O))      dQ = dS K      dK = dS' Q
    """

    def __init__(
        self,
        queries: torch.Tensor,
        gradient: torch.Tensor,
        out: torch.Tensor,
        total: torch.Tensor,
        layout: RingLayout,
        formula: Formula,
    ) -> None:
        self.queries, self.total, self.layout, self.formula = queries, total, layout, formula
        self.gradient = gradient.contiguous()
        self.along = (gradient.to(total.dtype) * out).sum(-1)  # [key heads, tokens, asking]
        self.of_queries = torch.zeros_like(queries, dtype=total.dtype)

    def through(self, rank: int, block: torch.Tensor) -> torch.Tensor:
        """Gradients of keys and values of that rank; those of queries are added up."""
        gradients = torch.zeros_like(block, dtype=self.total.dtype)
        for tile, seen in self.layout.tiles(rank, self.formula):
            self._add(tile, seen, block[:, :, tile.keys].to(self.total.dtype), gradients[:, :, tile.keys])
        return gradients

    def _add(self, tile: Tile, seen: torch.Tensor | None, block: torch.Tensor, result: torch.Tensor) -> None:
        at, (keys, values), (of_keys, of_values) = tile.queries, block, result
        queries, gradient = (item[:, at].to(self.total.dtype) for item in (self.queries, self.gradient))
        scores = _scores(queries, keys, self.formula)
        weights = (scores - self.total[:, at, :, None]).exp_()
        if seen is not None:
            weights.masked_fill_(~seen, 0.0)
        of_values += weights.flatten(1, 2).mT @ gradient.flatten(1, 2)
        of_scores = (gradient.flatten(1, 2) @ values.mT).view_as(weights)
        of_scores = of_scores.sub_(self.along[:, at, :, None]).mul_(weights)
        of_scores *= self.formula.slope(scores) * self.formula.factor(queries.shape[-1])
        of_keys += of_scores.flatten(1, 2).mT @ queries.flatten(1, 2)
        self.of_queries[:, at] += (of_scores.flatten(1, 2) @ keys).view_as(queries)


class _Sums:
    """What online softmax keeps of each query while keys come by."""

    def __init__(self, queries: torch.Tensor) -> None:
        wide = torch.promote_types(queries.dtype, torch.float32)
        self._values = torch.zeros_like(queries, dtype=wide)
        self._total = self._values.new_zeros(queries.shape[:-1])
        # finite: of a query that has seen nothing yet, minus this is still no NaN
        self._most = torch.full_like(self._total, torch.finfo(wide).min)

    def add(self, at: slice, scores: torch.Tensor, values: torch.Tensor) -> None:
        """scores: [key heads, queries, asking, keys] of the queries there; values: [key heads, keys, head_dim]."""
        most = torch.maximum(self._most[:, at], scores.amax(-1))
        weights = scores.sub_(most[..., None]).exp_()
        fading = (self._most[:, at] - most).exp_()
        product = weights.flatten(1, 2) @ values.to(weights.dtype)
        self._most[:, at] = most
        self._total[:, at] = self._total[:, at] * fading + weights.sum(-1)
        here = self._values[:, at]
        here.mul_(fading[..., None]).add_(product.view_as(here))

    def finished(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What each query gets, and the log of its sum: every token has seen itself by now."""
        return self._values.div_(self._total[..., None]), self._most + self._total.log()


def _scores(queries: torch.Tensor, keys: torch.Tensor, formula: Formula) -> torch.Tensor:
    """[key heads, queries, asking, keys] in at least float32, of [key heads, queries, asking, head_dim]."""
    wide = torch.promote_types(queries.dtype, torch.float32)
    scores = formula.scores(queries.flatten(1, 2).to(wide), keys.to(wide))
    return scores.unflatten(1, queries.shape[1:3])


def _passing(block: torch.Tensor, group: dist.ProcessGroup) -> Iterator[tuple[int, torch.Tensor]]:
    """This rank's block, and as they come by those of all others, each with whose it is. While the caller works with
    one the next arrives, where the one before it was."""
    rank, size = group.rank(), group.size()
    room, other = torch.empty_like(block), torch.empty_like(block)
    for step in range(size - 1):
        arriving = Shift.start(block, group, KEYS, into=room)
        yield (rank - step) % size, block
        block = arriving.arrived()
        room, other = other, room
    yield (rank + 1) % size, block
