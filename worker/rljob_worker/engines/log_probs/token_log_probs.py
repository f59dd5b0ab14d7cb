"""Log-probabilities of chosen tokens: one arithmetic for rollout, old, reference and current policy, so that they
agree.

log p(target) = z[target] - log sum exp(z) and H = -sum p log p with z = logits / temperature, in float32, or float64
when the logits are.
"""

from __future__ import annotations

import torch


def log_distribution(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-softmax of `logits / temperature` over the last dim."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    if temperature != 1.0:
        wide = wide / temperature  # which is all that is left of a copy in four bytes
    return torch.log_softmax(wide, dim=-1)


def at_targets(log_probs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Select the log-probs of `targets` [tokens] from those of the whole vocabulary [tokens, vocabulary]."""
    return log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def entropy_of(log_probs: torch.Tensor) -> torch.Tensor:
    """Entropies [tokens] of distributions whose log-probs are [tokens, vocabulary]."""
    return -log_probs.exp().mul_(log_probs).sum(-1)


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
        pull = (distribution + entropy[:, None]).mul_(-of_entropy[:, None]).add_(pull)
    gradient = distribution.exp_().mul_(pull)
    gradient.scatter_add_(-1, targets[:, None], of_log_prob[:, None])
    return gradient if temperature == 1.0 else gradient.div_(temperature)
