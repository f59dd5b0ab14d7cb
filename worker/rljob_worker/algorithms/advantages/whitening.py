"""Mean 0 and variance 1 over the batch of all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from ..masking import action_positions, scatter_actions
from ..segments import segment_sum
from .samples import Reduce, no_reduce

MAX_KINDS = 64
"""Kinds are distinguished by numbers below this, so that ranks that have seen different ones can add up their sums."""


def whiten(
    advantages: Tensor,
    mask: Tensor,
    reduce: Reduce = no_reduce,
    *,
    kinds: Tensor | None = None,
    epsilon: float = 1e-8,
) -> Tensor:
    """Mean 0 and variance 1 over the action tokens of the whole batch, or over those of each kind.

    A ← (A - mean) / √(var + epsilon), var with Bessel's correction

    Andrychowicz et al. 2020, https://arxiv.org/abs/2006.05990
    advantages, mask: [tokens] of this rank. reduce: sums over ranks, called twice on every rank. kinds: int64
    [tokens] in [0, 64). Below two tokens over all ranks the variance is undefined and advantages stay as they are.
    Returns [tokens] in the dtype of `advantages`, 0 at observation tokens; computed in float64.
    """
    at = action_positions(mask)
    actions = advantages.index_select(0, at).double()
    kind = torch.zeros_like(at) if kinds is None else kinds.index_select(0, at).long()
    num_kinds = 1 if kinds is None else MAX_KINDS
    sums = torch.stack([segment_sum(column, kind, num_kinds) for column in (torch.ones_like(actions), actions)])
    count, total = reduce(sums).unbind()
    centred = actions - (total / count.clamp(min=1.0))[kind]
    # a second pass over the deviations: squares of raw values would cancel
    squares = reduce(segment_sum(centred.square(), kind, num_kinds))
    scale = (squares / (count - 1.0).clamp(min=1.0) + epsilon).sqrt()
    whitened = torch.where(count[kind] < 2.0, actions, centred / scale[kind])
    return scatter_actions(whitened, at, len(mask)).to(advantages.dtype)
