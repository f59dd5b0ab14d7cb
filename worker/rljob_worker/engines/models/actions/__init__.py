"""Models that act: their responses are action tokens, of bins of each dimension of each action of a decision."""

from rljob_worker.engines.models.actions.mlp import MLPPolicy, MLPPolicyConfig, MLPPolicyTrunk
from rljob_worker.engines.models.actions.words import (
    ACTION_FAMILIES,
    ActionWords,
    action_words_of,
    acts,
    num_state_values,
    one_forward_of,
)

__all__ = [
    "ACTION_FAMILIES",
    "ActionWords",
    "MLPPolicy",
    "MLPPolicyConfig",
    "MLPPolicyTrunk",
    "action_words_of",
    "acts",
    "num_state_values",
    "one_forward_of",
]
