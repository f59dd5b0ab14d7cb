"""How the model of a directory reads observations and writes actions, from its config and tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rljob_worker.batch import Indices
from rljob_worker.embodied.actions import ActionStatistics, ActionTokens, BinOrder
from rljob_worker.embodied.observation import ActionPolicy, Actions, Observation
from rljob_worker.engines.models import model_config
from rljob_worker.engines.models.actions import action_words_of, num_state_values
from rljob_worker.errors import BadData, InvalidJob


def action_policy(path: str, statistics: str | None, chunk: int) -> ActionPolicy:
    """The policy of a model directory or a hub name.

    statistics: the data set whose units its actions have (a name in `norm_stats` of its config.json); None: the only
    one, or none at all, where actions stay between -1 and 1. chunk: actions of a decision. Raises InvalidJob for a
    model without action tokens, another chunk than its own, and statistics that are not there.
    """
    config = model_config(path)
    words = action_words_of(config)
    if words is None:
        raise InvalidJob(
            f"model path {path!r}: {config.model_type!r} has no action words; name a policy that acts, or give "
            'config.json action_tokens: {"first_word": …, "bins": 256, "chunk": …, "dimensions": …}'
        )
    own, dimensions = (int(config.action_tokens.get(name, 1)) for name in ("chunk", "dimensions"))
    if own != chunk:
        raise InvalidJob(
            f"model path {path!r}: a decision of the model has {own} actions, and rollout.simulator.actionChunk is "
            f"{chunk}; write actionChunk: {own}"
        )
    known = getattr(config, "norm_stats", None) or {}
    try:
        units = ActionStatistics.unit(dimensions)
        if known or statistics is not None:
            units = ActionStatistics.of(known, statistics, dimensions)
    except InvalidJob as error:
        raise InvalidJob(f"model path {path!r}: {error}") from error
    order: BinOrder = "OpenVLA" if config.action_tokens.get("counts_down") else "Ascending"
    tokens = ActionTokens(words.first, words.bins, chunk, units, order)
    return StatePolicy(tokens, num_state_values(config), prompt_word=words.stop)


@dataclass(frozen=True, slots=True)
class _Acting:
    """What the policies have in common."""

    action_tokens: ActionTokens
    state_size: int
    """Numbers of the state that it reads; 0: none."""

    @property
    def num_tokens(self) -> int:
        return self.action_tokens.num_tokens

    @property
    def allowed_tokens(self) -> Indices:
        return self.action_tokens.words

    def actions(self, tokens: Indices) -> Actions:
        return self.action_tokens.actions(tokens)

    def _require_state(self, observation: Observation) -> None:
        there = 0 if observation.state is None else len(observation.state)
        if self.state_size and there != self.state_size:
            raise BadData(
                f"the simulator measures a state of {there} numbers, and the model reads {self.state_size} "
                "(state_size in its config.json)"
            )


@dataclass(frozen=True, slots=True)
class StatePolicy(_Acting):
    """Reads nothing but the state; its prompt is one word that says nothing."""

    prompt_word: int

    def prompt(self, observation: Observation) -> Indices:
        self._require_state(observation)
        return np.array([self.prompt_word], np.int64)


def tokenizer_of(path: str) -> Any:
    """The tokenizer beside a model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)
