"""The divergence of whole distributions, token by token, without keeping the distributions.

KL(p ‖ q) = sum p (log p - log q) with p and q of logits / temperature, in float32, or float64 when the logits are.
"""

from __future__ import annotations

from typing import Any

import torch

from rljob_worker.engines.token_log_probs import chunks_of, log_distribution


def full_kl(logits: torch.Tensor, ref_logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """KL [tokens] of the distributions of `logits` from those of `ref_logits`, both [tokens, vocabulary].
    Differentiable in `logits`; of the forward only logits are kept."""
    kl: torch.Tensor = _FullKL.apply(logits, ref_logits, temperature)
    return kl


class _FullKL(torch.autograd.Function):
    """Chunks of tokens, each recomputed in the backward pass."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, ref_logits: torch.Tensor, temperature: float) -> torch.Tensor:
        parts = [
            (log_p.exp() * (log_p - log_q)).sum(-1) for log_p, log_q in _distributions(logits, ref_logits, temperature)
        ]
        kl = torch.cat(parts)
        ctx.save_for_backward(logits, ref_logits, kl)
        ctx.temperature = temperature
        return kl

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """dKL / dz = p ((log p - log q) - KL); dz / dlogits = 1 / temperature."""
        logits, ref_logits, kl = ctx.saved_tensors
        out = torch.empty_like(logits)
        start = 0
        for log_p, log_q in _distributions(logits, ref_logits, ctx.temperature):
            rows = slice(start, start + len(log_p))
            pull = (gradients[0][rows] / ctx.temperature)[:, None]
            out[rows] = log_p.exp() * (log_p - log_q - kl[rows, None]) * pull
            start = rows.stop
        return out, None, None


def _distributions(logits: torch.Tensor, ref_logits: torch.Tensor, temperature: float) -> Any:
    for part, ref_part in chunks_of(logits, ref_logits):
        yield log_distribution(part, temperature), log_distribution(ref_part, temperature)
