"""Entropy of the next-token distribution."""

from __future__ import annotations

import torch
from torch import Tensor


def token_entropy(logits: Tensor) -> Tensor:
    """Entropy of the categorical distribution of each token, in nats.

    H = log Σ_v e^{z_v} - Σ_v p_v · z_v,   p = softmax(z)

    Williams and Peng 1991, https://doi.org/10.1080/09540099108946587 (as a bonus)
    logits: [tokens, vocabulary], already divided by the sampling temperature; -inf excludes an entry.
    Returns [tokens], differentiable.
    """
    log_p = torch.log_softmax(logits, dim=-1)
    # an excluded entry has p·log p = 0·(-inf); its limit is 0
    return -(log_p.exp() * log_p.masked_fill(log_p == -torch.inf, 0.0)).sum(-1)
