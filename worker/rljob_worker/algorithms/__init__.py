"""Estimators, losses and objectives: pure functions of packed tensors, found by catalogue name.

    registry     parts by name; it knows none of them
    segments     sums and scans over rows of packed tokens
    masking      which tokens are actions; everything below sees only those
    advantages   what the advantage stage computes, from rewards on: estimators by family, whitening
    policy_losses, kl     one number per token
    aggregation  per token -> per optimizer step
    preparation, corrections       what is known of a batch before its first micro-batch
    objectives   what an engine minimises on a policy
    values       the same on a critic

Importing the package files every part in its registry. A new part is a new module, listed here.
"""

from . import advantages, aggregation, kl, policy_losses, values
from .advantages import ADVANTAGES, Advantages
from .advantages.estimation import estimate_advantages
from .aggregation import AGGREGATIONS
from .kl import KL_ESTIMATORS, KLController
from .objectives import PolicyObjective, policy_objective
from .policy_losses import POLICY_LOSSES
from .registry import resolve
from .values import VALUE_LOSSES, ValueObjective, value_objective, with_explained_variance

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
    "kl",
    "policy_losses",
    "policy_objective",
    "resolve",
    "value_objective",
    "values",
    "with_explained_variance",
]
