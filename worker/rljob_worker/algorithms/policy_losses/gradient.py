"""Policy gradients: log-probabilities weighted by the advantage and by detached ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ..ratios import bounded_exp
from .tokens import POLICY_LOSSES, PolicyTokenLosses, PolicyTokens

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import LossSpec


def reinforce(log_probs: Tensor, advantages: Tensor) -> PolicyTokenLosses:
    """The policy gradient, without a ratio and without a bound.

    L = -A · log π

    Williams 1992, https://doi.org/10.1007/BF00992696; GPG https://arxiv.org/abs/2504.02546
    log_probs, advantages: [tokens]; only log_probs carries a gradient. Returns losses [tokens].
    """
    return PolicyTokenLosses(-advantages * log_probs)


def cispo(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, clip_high: float) -> PolicyTokenLosses:
    """The policy gradient with an importance weight that is cut above: no token loses its gradient.

    L = -sg(min(ρ, 1 + clip_high)) · A · log π

    CISPO, MiniMax-M1 https://arxiv.org/abs/2506.13585 (no bound below)
    log_probs, old_log_probs, advantages: [tokens]; only log_probs carries a gradient.
    Returns losses [tokens] and the indicator `clip_fraction_high`, where the weight is cut.
    """
    ratio = bounded_exp(log_probs.detach() - old_log_probs)
    weight = ratio.clamp(max=1.0 + clip_high)
    return PolicyTokenLosses(-weight * advantages * log_probs, {"clip_fraction_high": ratio > 1.0 + clip_high})


@POLICY_LOSSES.register("GPG")
@POLICY_LOSSES.register("Reinforce")
def reinforce_loss(tokens: PolicyTokens, options: LossSpec) -> PolicyTokenLosses:
    """`reinforce`; what sets GPG apart is in its advantages."""
    return reinforce(tokens.log_probs, tokens.advantages)


@POLICY_LOSSES.register("CISPO")
def cispo_loss(tokens: PolicyTokens, options: LossSpec) -> PolicyTokenLosses:
    """`cispo` with the bound of the job."""
    return cispo(tokens.log_probs, tokens.old_log_probs, tokens.advantages, clip_high=options.clip_high)
