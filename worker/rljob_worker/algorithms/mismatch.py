"""How far what the trainer says of the sampled tokens is from what the rollout engine said of them: `mismatch/*`.

Of the policy that drew them, μ in the rollout's arithmetic and π_old in the trainer's: 0 except for rounding, whatever
the update does later. A step says it once, in every run: where old log-probs are a column, of all its rows; else of
those of its first optimizer step, whose forward pass is made with the weights that drew."""

from __future__ import annotations

import torch
from torch import Tensor

from .metric_accumulator import MetricAccumulator
from .ratios import LOG_LIMIT

ROLLOUT_LOG_PROBS = "rollout_log_probs"


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
