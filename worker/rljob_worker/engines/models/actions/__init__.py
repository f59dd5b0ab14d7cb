"""Models that act: their responses are action tokens, of bins of each dimension of each action of a decision."""

from rljob_worker.engines.models.actions.mlp import MLPPolicy, MLPPolicyConfig, MLPPolicyTrunk
from rljob_worker.engines.models.actions.openvla import OpenVLAOFTPolicy, OpenVLAPolicy
from rljob_worker.engines.models.actions.openvla_config import OpenVLAConfig, OpenVLAOFTConfig
from rljob_worker.engines.models.actions.words import (
    ACTION_FAMILIES,
    ActionWords,
    action_words_of,
    acts,
    acts_by_towers,
    num_state_values,
    one_forward_of,
)

__all__ = [
    "ACTION_FAMILIES",
    "ActionWords",
    "MLPPolicy",
    "MLPPolicyConfig",
    "MLPPolicyTrunk",
    "OpenVLAConfig",
    "OpenVLAOFTConfig",
    "OpenVLAOFTPolicy",
    "OpenVLAPolicy",
    "action_words_of",
    "acts",
    "acts_by_towers",
    "num_state_values",
    "one_forward_of",
]
