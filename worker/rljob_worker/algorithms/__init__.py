"""Estimators, losses and objectives: pure functions of packed tensors, found by catalogue name.

    registry     parts by name; it knows none of them
    segments     sums and scans over rows of packed tokens
    masking      which tokens are actions; everything below sees only those
    advantages   estimators by family, whitening
    estimation   what the advantage stage computes, from rewards on
    policy_losses, value_losses, kl, entropy     one number per token
    aggregation  per token -> per optimizer step
    objectives, value_objective    what an engine minimises

Importing the package files every part in its registry. A new part is a new module, listed here.
"""

from . import advantages, aggregation, estimation, kl, policy_losses, value_losses
from .advantages import ADVANTAGES, Advantages
from .aggregation import AGGREGATIONS
from .estimation import estimate_advantages
from .kl import KL_ESTIMATORS, KLController
from .objectives import PolicyObjective, policy_objective
from .policy_losses import POLICY_LOSSES
from .registry import resolve
from .value_losses import VALUE_LOSSES
from .value_objective import ValueObjective, value_objective, with_explained_variance

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "KL_ESTIMATORS",
    "POLICY_LOSSES",
    "VALUE_LOSSES",
    "Advantages",
    "KLController",
    "PolicyObjective",
    "ValueObjective",
    "advantages",
    "aggregation",
    "estimate_advantages",
    "estimation",
    "kl",
    "policy_losses",
    "policy_objective",
    "resolve",
    "value_losses",
    "value_objective",
    "with_explained_variance",
]
