"""Policy losses by family: one number per action token, and indicators of where a bound is active.

ppo         ratios of tokens: PPO clip, SAPO
sequence    ratios of rows: GSPO, GSPO-token, GMPO
gradient    detached ratios or none: CISPO, GPG, REINFORCE
cpgd        log-ratios with policy drift
dppo        divergences: DPPO-TV, DPPO-KL
covariance  tokens held back for entropy: Clip-Cov, KL-Cov
"""

from .covariance import clip_cov, covariances, kl_cov
from .cpgd import cpgd, policy_drift
from .dppo import binary_kl, dppo_kl, dppo_tv
from .gradient import cispo, reinforce
from .ppo import ppo_clip, ppo_clip_loss, sapo
from .sequence import gmpo, gspo, gspo_token
from .tokens import POLICY_LOSSES, MiniBatchTokens, PolicyLoss, PolicyTokenLosses, PolicyTokens, PreparedPolicyLoss

__all__ = [
    "POLICY_LOSSES",
    "MiniBatchTokens",
    "PolicyLoss",
    "PolicyTokenLosses",
    "PolicyTokens",
    "PreparedPolicyLoss",
    "binary_kl",
    "cispo",
    "clip_cov",
    "covariances",
    "cpgd",
    "dppo_kl",
    "dppo_tv",
    "gmpo",
    "gspo",
    "gspo_token",
    "kl_cov",
    "policy_drift",
    "ppo_clip",
    "ppo_clip_loss",
    "reinforce",
    "sapo",
]
