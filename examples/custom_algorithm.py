"""The advantage estimator and the policy loss of custom-algorithm.yaml.

Both are functions of packed tensors: row after row without padding, with `row` telling which row a token belongs to.
`options.options` holds what the job writes under `options`.
"""

from typing import TYPE_CHECKING

import torch

from rljob_worker.algorithms.advantages import Advantages, Reduce, Samples
from rljob_worker.algorithms.policy_losses import PolicyTokenLosses, PolicyTokens
from rljob_worker.algorithms.segments import segment_mean

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import AdvantageSpec, LossSpec


def less_blame(samples: Samples, options: "AdvantageSpec", reduce: Reduce) -> Advantages:
    """Rewards compared with the mean of their group; answers below it are held against the policy only in part.

    a = r - mean of the group's r, times `blame` where that is negative
    """
    groups, group = samples.group_ids.unique(return_inverse=True)
    centred = samples.rewards - segment_mean(samples.rewards, group, len(groups))[group]
    return Advantages(samples.on_actions(torch.where(centred < 0, options.options["blame"] * centred, centred)))


def squared_distance(tokens: PolicyTokens, options: "LossSpec") -> PolicyTokenLosses:
    """The policy gradient without a clip; the squared distance from the old policy pulls back instead.

    -a · ratio + pull / 2 · (log ratio)²
    """
    log_ratio = tokens.log_probs - tokens.old_log_probs
    losses = -tokens.advantages * log_ratio.exp() + 0.5 * options.options["pull"] * log_ratio.square()
    return PolicyTokenLosses(losses, {"far_fraction": log_ratio.detach().abs() > 0.2})
