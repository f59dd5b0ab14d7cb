"""The divergence of whole distributions, token by token.

KL(p ‖ q) = sum p (log p - log q) with p and q of logits / temperature, in float32, or float64 when the logits are.
"""

from __future__ import annotations

import torch

from rljob_worker.engines.log_probs.token_log_probs import log_distribution


def full_kl(logits: torch.Tensor, ref_logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """KL [tokens] of the distributions of `logits` from those of `ref_logits`, both [tokens, vocabulary]."""
    log_p, log_q = log_distribution(logits, temperature), log_distribution(ref_logits, temperature)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def full_kl_gradient(
    logits: torch.Tensor, ref_logits: torch.Tensor, kl: torch.Tensor, of_kl: torch.Tensor, temperature: float
) -> torch.Tensor:
    """dKL / dz = p ((log p - log q) - KL); dz / dlogits = 1 / temperature. kl, of_kl: [tokens], KL and its gradient."""
    log_p = log_distribution(logits, temperature)
    difference = log_p - log_distribution(ref_logits, temperature)
    return difference.sub_(kl[:, None]).mul_(log_p.exp_()).mul_((of_kl / temperature)[:, None])
