"""Attention of packed rows whose last tokens see all of their row, those behind them included.

Of a row `p0 p1 a b` that is so from place 2 on, with a 1 where a query (down) sees a key (across):

        p0 p1 a  b
    p0  1  0  0  0
    p1  1  1  0  0
    a   1  1  1  1
    b   1  1  1  1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from rljob_worker.batch import Indices
from rljob_worker.engines.attention.varlen import Formula, groups_heads, plan_rectangles
from rljob_worker.errors import InvalidJob


@dataclass(frozen=True, slots=True)
class BothWaysLayout:
    """Attention within each row of one pack, which shares no tokens between rows."""

    gather: torch.Tensor
    """[slots] packed position of each slot."""
    scatter: torch.Tensor
    """[tokens] slot that computes each packed token."""
    masks: tuple[torch.Tensor, ...]
    """bool [rows, 1, length, length] of each rectangle: which keys a query sees; slots follow one another."""

    @staticmethod
    def build(sequences: Indices, lengths: Indices, both_ways: Indices, num_tokens: int) -> BothWaysLayout:
        """From packed positions of each row in turn, how many each has, and from where on its tokens see all of it; in
        host memory."""
        gather, scatter, rectangles = plan_rectangles(sequences, lengths, num_tokens)
        order, masks, start = np.argsort(-lengths, kind="stable"), [], 0
        for rows, length in rectangles:
            of = order[start : start + rows]
            masks.append(_sees(lengths[of], both_ways[of], length))
            start += rows
        return BothWaysLayout(torch.from_numpy(gather), torch.from_numpy(scatter), tuple(map(torch.from_numpy, masks)))

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, formula: Formula) -> torch.Tensor:
        if formula.window is not None or formula.cap is not None:
            raise InvalidJob(
                "attention in both directions is computed without a window and without bounded scores; use a model "
                "without sliding layers"
            )
        num_tokens, heads = query.shape[2], query.shape[1]
        if not groups_heads(query.device.type, query.dtype, masked=True):
            key, value = (item.repeat_interleave(heads // item.shape[1], dim=1) for item in (key, value))
        padded = [item[0].transpose(0, 1).index_select(0, self.gather) for item in (query, key, value)]
        outputs, start = [], 0
        for mask in self.masks:
            rows, length = mask.shape[0], mask.shape[-1]
            q, k, v = (
                item[start : start + rows * length].unflatten(0, (rows, length)).transpose(1, 2) for item in padded
            )
            result = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=formula.scale, enable_gqa=query.shape[1] != key.shape[1]
            )
            outputs.append(result.transpose(1, 2).reshape(rows * length, -1))
            start += rows * length
        return torch.cat(outputs).index_select(0, self.scatter).view(1, num_tokens, heads, -1)


def _sees(lengths: Indices, both_ways: Indices, length: int) -> np.ndarray:
    """bool [rows, 1, queries, keys]; a pad sees what is before it, so that no query sees nothing."""
    places = np.arange(length)
    earlier = places[None, :] <= places[:, None]
    is_there = places[None, :] < lengths[:, None]
    sees_all = places[None, :] >= both_ways[:, None]
    return (earlier[None] | (sees_all[:, :, None] & is_there[:, None, :]))[:, None]
