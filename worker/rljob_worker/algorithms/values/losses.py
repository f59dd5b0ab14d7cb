"""Losses of the critic: one number per action token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..registry import Registry


@dataclass(frozen=True)
class ValueTokenLosses:
    """Losses per action token, and where clipping took the gradient away."""

    losses: Tensor  # [tokens], differentiable
    clipped: Tensor  # bool [tokens]


class ValueLoss(Protocol):
    """A value loss as the catalogue and `module:function` know it."""

    def __call__(
        self, values: Tensor, old_values: Tensor, returns: Tensor, clip_value: float | None, /
    ) -> ValueTokenLosses: ...


VALUE_LOSSES: Registry[ValueLoss] = Registry("value loss")


@VALUE_LOSSES.register("Clipped")
def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip_value: float | None
) -> ValueTokenLosses:
    """Half the squared error, not rewarded for moving further than the clip from the old value.

    V_c = V_old + clip(V - V_old, -clip_value, clip_value)
    L = ½ · max((V - R)², (V_c - R)²);   without a clip ½ · (V - R)²

    PPO's reference code, https://arxiv.org/abs/2005.12729 section 3
    values, old_values, returns: [tokens]; only values carries a gradient.
    Returns losses [tokens] and the clip indicator [tokens].
    """
    square = (values - returns).square()
    if clip_value is None:
        return ValueTokenLosses(0.5 * square, torch.zeros_like(square, dtype=torch.bool))
    near = old_values + (values - old_values).clamp(-clip_value, clip_value)
    near_square = (near - returns).square()
    return ValueTokenLosses(0.5 * torch.maximum(square, near_square), near_square > square)
