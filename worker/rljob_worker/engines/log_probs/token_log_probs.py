"""Log-probabilities of chosen tokens: one arithmetic for rollout, old, reference and current policy, so that they
agree.

log p(target) = z[target] - log sum exp(z) and H = -sum p log p with z = logits / temperature, in float32, or float64
when the logits are.
"""

from __future__ import annotations

from typing import Any

import torch

CHUNK_ELEMENTS = 1 << 26
"""Entries of the distribution in memory at once: 256 MiB in float32. With a vocabulary of 150 000 and 16 384 tokens
the whole would be 10 GB, several times over."""


def log_distribution(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-softmax of `logits / temperature` over the last dim."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax(wide if temperature == 1.0 else wide / temperature, dim=-1)


def at_targets(log_probs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Select the log-probs of `targets` [tokens] from those of the whole vocabulary [tokens, vocabulary]."""
    return log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def token_log_probs(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float, *, with_entropy: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probs of `targets` [tokens] under logits [tokens, vocabulary], and the entropy of each distribution.
    Differentiable; of the forward only the logits are kept."""
    log_probs, entropy = _TokenLogProbs.apply(logits, targets, temperature, with_entropy)
    return log_probs, entropy if with_entropy else None


class _TokenLogProbs(torch.autograd.Function):  # type: ignore[misc]
    """Chunks of tokens, each recomputed in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, temperature: float, with_entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        log_probs, entropies = [], []
        for part, wanted in chunks_of(logits, targets):
            distribution = log_distribution(part, temperature)
            log_probs.append(at_targets(distribution, wanted))
            if with_entropy:
                entropies.append(-(distribution.exp() * distribution).sum(-1))
        entropy = torch.cat(entropies) if with_entropy else None
        ctx.save_for_backward(logits, targets, entropy)
        ctx.temperature = temperature
        return torch.cat(log_probs), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        logits, targets, entropy = ctx.saved_tensors
        of_log_prob, of_entropy = gradients
        out = torch.empty_like(logits)
        start = 0
        for part, wanted in chunks_of(logits, targets):
            rows = slice(start, start + len(part))
            of_entropies = None if entropy is None else (of_entropy[rows], entropy[rows])
            out[rows] = logit_gradient(part, wanted, of_log_prob[rows], of_entropies, ctx.temperature)
            start = rows.stop
        return out, None, None, None


def logit_gradient(
    logits: torch.Tensor,
    targets: torch.Tensor,
    of_log_prob: torch.Tensor,
    of_entropies: tuple[torch.Tensor, torch.Tensor] | None,
    temperature: float,
) -> torch.Tensor:
    """d log p(t) / dz = onehot(t) - p and dH / dz = -p (log p + H); dz / dlogits = 1 / temperature. of_entropies: the
    gradient and H, where entropies have one."""
    distribution = log_distribution(logits, temperature)
    pull = -of_log_prob[:, None]
    if of_entropies is not None:
        of_entropy, entropy = of_entropies
        pull = pull - of_entropy[:, None] * (distribution + entropy[:, None])
    gradient = distribution.exp_().mul_(pull)
    gradient.scatter_add_(-1, targets[:, None], of_log_prob[:, None])
    return gradient if temperature == 1.0 else gradient.div_(temperature)


def chunks_of(logits: torch.Tensor, others: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Both [tokens, ...] cut alike, so that a part of the logits has a bounded number of entries."""
    rows = max(1, CHUNK_ELEMENTS // logits.shape[-1])
    return list(zip(logits.split(rows), others.split(rows), strict=True))
