"""Advantages on packed tokens: `estimation` takes a step from rewards to advantages; estimators are by family.

group      rewards compared within a prompt: GRPO, RLOO, OPO, pass@k, CPGD, REINFORCE++ with a baseline
reinforce  rewards still to come: REINFORCE++, ReMax
gae        rewards compared with a critic
marft      the same along several agents
"""

from .gae import gae, last_action_values
from .group import (
    cpgd_advantages,
    group_spread,
    grpo_advantages,
    opo_advantages,
    pass_at_k_advantages,
    rloo_advantages,
)
from .marft import marft_gae
from .reinforce import discounted_returns, remax_advantages
from .samples import ADVANTAGES, AdvantageEstimator, Advantages, Reduce, Samples, no_reduce
from .whitening import whiten

__all__ = [
    "ADVANTAGES",
    "AdvantageEstimator",
    "Advantages",
    "Reduce",
    "Samples",
    "cpgd_advantages",
    "discounted_returns",
    "gae",
    "group_spread",
    "grpo_advantages",
    "last_action_values",
    "marft_gae",
    "no_reduce",
    "opo_advantages",
    "pass_at_k_advantages",
    "remax_advantages",
    "rloo_advantages",
    "whiten",
]
