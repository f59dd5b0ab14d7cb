"""How the model of a directory reads observations and writes actions, from its config and tokenizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from rljob_api.v1alpha1.data import ImageSpec
from rljob_worker.batch import Indices
from rljob_worker.data.prompts import PromptEncoder
from rljob_worker.embodied.actions import ActionStatistics, ActionTokens, BinOrder
from rljob_worker.embodied.observation import Actions, Observation
from rljob_worker.engines.models import model_config
from rljob_worker.engines.models.actions import ACTION_FAMILIES, action_words_of, acts_by_towers, num_state_values
from rljob_worker.engines.models.families import VISION_FAMILIES, sees
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.vision.picture_tokens import PLACE
from rljob_worker.vision.processing import shared_processor
from rljob_worker.vision.sizes import PixelBudget

PROMPT = "In: What action should the robot take to {instruction}?\nOut:"
"""What the published models are asked."""
_SPACE = "▁"
"""The empty token that stands behind a prompt of theirs."""


@dataclass(frozen=True, slots=True)
class TextRule:
    """How models that also talk are asked."""

    budget: PixelBudget = PixelBudget(ImageSpec().min_pixels, ImageSpec().max_pixels)
    """Pixels of the pictures that they are shown."""
    applies_template: bool = False
    """Whether the question is a message of the model's chat template, or bare text."""


def action_policy(path: str, statistics: str | None, chunk: int, asked: TextRule = TextRule()) -> BinPolicy:
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
    state_size = num_state_values(config)
    if acts_by_towers(config):
        return _openvla_policy(path, config, tokens)
    if config.model_type == "rljob_mlp_policy":
        return StatePolicy(tokens, state_size, prompt_word=words.stop)
    if sees(config):
        processor = shared_processor(path, asked.budget)
        encoder = PromptEncoder(tokenizer_of(path), apply_chat_template=asked.applies_template, pictures=processor)
        return VisionLanguagePolicy(tokens, state_size, encoder)
    raise InvalidJob(
        f"model path {path!r}: {config.model_type!r} reads text alone, and no observation of a simulator; use one of "
        f"{', '.join(sorted([*ACTION_FAMILIES.values(), *VISION_FAMILIES.values()]))}"
    )


def _openvla_policy(path: str, config: Any, tokens: ActionTokens) -> OpenVLAPromptPolicy:
    tokenizer = tokenizer_of(path)
    space = tokenizer.convert_tokens_to_ids(_SPACE)
    return OpenVLAPromptPolicy(
        tokens,
        num_state_values(config),
        tokenizer,
        picture=(config.image_token_id,) * config.num_patches,
        state=(config.state_token_id,) if config.state_size else (),
        end=() if space in (None, tokenizer.unk_token_id) else (int(space),),
    )


@dataclass(frozen=True, slots=True)
class BinPolicy(ABC):
    """An `ActionPolicy` whose actions are words of bins."""

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

    @abstractmethod
    def prompt(self, observation: Observation) -> Indices:
        """As `ActionPolicy` has it."""

    def _require_pictures(self, observation: Observation) -> None:
        if not observation.pictures:
            raise BadData("the model reads pictures, and the simulator shows none; name rollout.simulator.cameras")

    def _require_state(self, observation: Observation) -> None:
        there = 0 if observation.state is None else len(observation.state)
        if self.state_size and there != self.state_size:
            raise BadData(
                f"the simulator measures a state of {there} numbers, and the model reads {self.state_size} "
                "(state_size in its config.json)"
            )


@dataclass(frozen=True, slots=True)
class StatePolicy(BinPolicy):
    """Reads nothing but the state; its prompt is one word that says nothing."""

    prompt_word: int

    def prompt(self, observation: Observation) -> Indices:
        self._require_state(observation)
        return np.array([self.prompt_word], np.int64)


@dataclass(frozen=True, slots=True)
class OpenVLAPromptPolicy(BinPolicy):
    """Pictures and state behind the first token, then what the published models are asked."""

    tokenizer: Any
    picture: tuple[int, ...]
    """Tokens of one picture."""
    state: tuple[int, ...]
    """The token of the state, where the model reads one."""
    end: tuple[int, ...]
    """What ends the prompt, if the tokenizer did not put it there."""

    def prompt(self, observation: Observation) -> Indices:
        self._require_state(observation)
        self._require_pictures(observation)
        text = PROMPT.format(instruction=observation.instruction.lower())
        words = tuple(self.tokenizer(text).input_ids)
        if words[-1:] != self.end:
            words += self.end
        first = 1 if words[0] == self.tokenizer.bos_token_id else 0
        shown = self.picture * len(observation.pictures)
        return np.array([*words[:first], *shown, *self.state, *words[first:]], np.int64)


@dataclass(frozen=True, slots=True)
class VisionLanguagePolicy(BinPolicy):
    """Pictures, then what the published models are asked, as the model has its prompts."""

    encoder: PromptEncoder

    def prompt(self, observation: Observation) -> Indices:
        self._require_pictures(observation)
        if observation.state is not None:
            raise BadData("the model reads no state; leave rollout.simulator.state out")
        text = PLACE * len(observation.pictures) + PROMPT.format(instruction=observation.instruction)
        (tokens,), _, _ = self.encoder.encode([text], lambda _: "an observation", [observation.pictures])
        return tokens


def tokenizer_of(path: str) -> Any:
    """The tokenizer beside a model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)
