"""What a critic's values are trained with: losses per token, and the objective that its engine minimises."""

from .losses import VALUE_LOSSES, ValueLoss, ValueTokenLosses
from .objective import ValueObjective, value_objective, with_explained_variance

__all__ = [
    "VALUE_LOSSES",
    "ValueLoss",
    "ValueObjective",
    "ValueTokenLosses",
    "value_objective",
    "with_explained_variance",
]
