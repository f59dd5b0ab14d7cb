"""Log-probabilities of chosen tokens: one function for rollout, old, reference and current policy, so that they
agree."""

from __future__ import annotations

import torch


def log_distribution(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-softmax of `logits / temperature` over the last dim, in float32, or float64 when the logits are."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax(wide if temperature == 1.0 else wide / temperature, dim=-1)


def token_log_probs(log_probs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Of log-probs [tokens, vocabulary], those of `targets` [tokens]."""
    return log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """Entropy of each distribution, [tokens], in nats."""
    return -(log_probs.exp() * log_probs).sum(-1)
