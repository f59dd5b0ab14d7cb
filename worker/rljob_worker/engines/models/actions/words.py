"""What the config of a model says of action tokens: which words they are, and how they are computed."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PretrainedConfig

from rljob_worker.engines.decision_packing import OneForward
from rljob_worker.errors import InvalidJob

ACTION_FAMILIES = {"openvla": "OpenVLA", "openvla_oft": "OpenVLA-OFT", "rljob_mlp_policy": "MLP policies"}
"""Architectures that do nothing but act, by the `model_type` of their config. Others act where their config has
`action_tokens`."""

FLOW_FAMILIES = {"gr00t_n1_5": "GR00T N1.5", "pi0": "π0", "pi05": "π0.5", "pi0_fast": "π0-FAST", "smolvla": "SmolVLA"}
"""Their actions come from a flow or a tokenizer of their own, not from bins; by `model_type`, or `type` of LeRobot."""


@dataclass(frozen=True, slots=True)
class ActionWords:
    """The words that a policy samples from, and no others."""

    first: int
    bins: int

    @property
    def stop(self) -> int:
        """The word behind the last."""
        return self.first + self.bins


def acts(config: PretrainedConfig) -> bool:
    """Whether responses of a model of this config are action tokens."""
    return config.model_type in ACTION_FAMILIES or bool(getattr(config, "action_tokens", None))


def acts_by_towers(config: PretrainedConfig) -> bool:
    """Whether a model reads pictures by towers of OpenVLA."""
    return hasattr(config, "vision_towers")


def action_words_of(config: PretrainedConfig) -> ActionWords | None:
    """None for a model whose words are text. Raises InvalidJob for `action_tokens` that are not words of the model."""
    if not acts(config):
        return None
    tokens = config.action_tokens
    words = ActionWords(int(tokens.get("first_word", -1)), int(tokens.get("bins", 256)))
    vocabulary = int(config.get_text_config().vocab_size)
    if words.first < 0 or words.bins < 2 or words.stop > vocabulary:
        raise InvalidJob(
            f"config.json: action_tokens has bins {words.bins} from first_word {words.first} on, and the model has "
            f"words from 0 to {vocabulary - 1}; name at least 2 of them"
        )
    return words


def one_forward_of(config: PretrainedConfig) -> OneForward | None:
    """How a model computes all tokens of a decision at once; None for one that computes them one after another."""
    result: OneForward | None = getattr(config, "one_forward", None)
    return result


def num_state_values(config: PretrainedConfig) -> int:
    """Numbers of the state that a model reads beside its prompt; 0 for one that reads none."""
    return int(getattr(config, "state_size", 0) or 0)
