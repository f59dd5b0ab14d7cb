"""How far what the trainer says of the sampled tokens is from what the rollout engine said of them: `mismatch/*`.

μ is the policy that drew them, in the rollout's arithmetic; π_old the one that the update begins with, in the
trainer's. In synchronous jobs both have the same weights: 0 except for rounding, whatever the update does later. With
`rollout.maxStaleness` μ may be older, and what rounding alone makes is that of tokens of age 0. A step says it once, in
every run: where old log-probs are a column, of all its rows; else of those of its first optimizer step, whose forward
pass is made with the weights that the update begins with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .metric_accumulator import MetricAccumulator
from .ratios import LOG_LIMIT
from .segments import segment_count, segment_sum

ROLLOUT_LOG_PROBS = "rollout_log_probs"
TOKEN_VERSIONS = "token_versions"


@dataclass(frozen=True)
class TokenAges:
    """By how many updates of the policy the weights that drew a token are behind those that the update begins with."""

    newest: int
    """The version of the latter."""
    oldest: int
    """The age that counts for all that is older, too."""
    first: int = 0
    """Up to this version the policy has the weights that it began with, as while a critic warms up."""

    def of(self, token_versions: Tensor) -> Tensor:
        """Ages, int64 between 0 and `oldest`. token_versions: int64 [tokens]."""
        return (max(self.newest, self.first) - token_versions.clamp(min=self.first)).clamp(0, self.oldest)


def add_mismatch_metrics(
    totals: MetricAccumulator, old_log_probs: Tensor, rollout_log_probs: Tensor, ratio: Tensor | None = None
) -> None:
    """`mismatch/k1` and `k3`, which estimate KL(μ ‖ π_old) per token, the largest ratio, and |π_old - μ| of a token.

    x = log π_old - log μ

    k1 = mean -x,  k3 = mean e^x - 1 - x
    old_log_probs, rollout_log_probs: [actions]. ratio: [actions], where not e^x is compared with the bounds of a
    correction. x is cut at ±20 where it is an exponent, and no probability is above 1.
    """
    old, rollout = old_log_probs.detach().double(), rollout_log_probs.double()
    log_ratio = old - rollout
    bounded = log_ratio.clamp(-LOG_LIMIT, LOG_LIMIT)
    difference = (old.clamp(max=0.0).exp() - rollout.clamp(max=0.0).exp()).abs()
    totals.mean_of("mismatch/k1", -log_ratio)
    totals.mean_of("mismatch/k3", torch.expm1(bounded) - bounded)
    totals.maximum("mismatch/ratio_max", bounded.exp() if ratio is None else ratio)
    totals.mean_of("mismatch/probs_diff", difference)
    totals.maximum("mismatch/probs_diff_max", difference)


def add_age_metrics(
    totals: MetricAccumulator, old_log_probs: Tensor, rollout_log_probs: Tensor, age: Tensor, oldest: int
) -> None:
    """`mismatch/ratio_mean/age_<n>` and `mismatch/k3/age_<n>`: means of e^x and of k3 over the tokens of an age; left
    out where there are none.

    old_log_probs, rollout_log_probs: [actions]. age: int64 [actions], between 0 and oldest. x is cut at ±20.
    """
    log_ratio = old_log_probs.detach().double() - rollout_log_probs.double()
    bounded = log_ratio.clamp(-LOG_LIMIT, LOG_LIMIT)
    counts = segment_count(age, oldest + 1)
    for name, values in (("ratio_mean", bounded.exp()), ("k3", torch.expm1(bounded) - bounded)):
        sums = segment_sum(values, age, oldest + 1)
        for number in range(oldest + 1):
            totals.mean_if_any(f"mismatch/{name}/age_{number}", sums[number], counts[number])
