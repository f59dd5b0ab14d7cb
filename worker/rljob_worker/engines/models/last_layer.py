"""A policy's forward that ends in log-probs in place of logits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from rljob_worker.engines.log_probs.linear import EntropyUse, LastLayer, linear_log_probs
from rljob_worker.engines.models.actions import ActionWords, action_words_of
from rljob_worker.engines.models.families import logit_cap


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of the last layer in one forward."""

    predicts: torch.Tensor
    """[tokens] positions of the pack whose logits predict."""
    targets: torch.Tensor
    """[tokens] the token ids that were drawn there."""
    temperature: float
    entropy: EntropyUse = "None"
    reference: LastLayer | None = None
    """What the divergence of whole distributions is taken from."""


def fuse_last_layer(model: PreTrainedModel) -> None:
    """A causal LM that is called with `wanted` gives `LinearLogProbs`; with `last_layer_at`, positions of the pack, the
    `LastLayer` there; without either nothing changes.

    It is the model's own forward, so that gathering weights around it includes those of the last layer.
    """
    model.forward = partial(_forward, model, model.forward, action_words_of(model.config))


def _forward(
    model: PreTrainedModel,
    stock: Any,
    words: ActionWords | None,
    *,
    wanted: Wanted | None = None,
    last_layer_at: torch.Tensor | None = None,
    **inputs: Any,
) -> Any:
    at = last_layer_at if wanted is None else wanted.predicts
    if at is None:
        return _of_words(words, stock(**inputs))
    # a model without another below its last layer is its own base
    base = model.hidden_states if model.base_model is model else model.base_model
    hidden = base(**inputs).last_hidden_state[0].index_select(0, at)
    last_layer = _last_layer(model, words, hidden)
    if wanted is None:
        return last_layer
    return linear_log_probs(
        last_layer, wanted.targets, wanted.temperature, entropy=wanted.entropy, reference=wanted.reference
    )


def _last_layer(model: PreTrainedModel, words: ActionWords | None, hidden: torch.Tensor) -> LastLayer:
    """What logits of all words are made of, or those of the action words of a policy that acts."""
    last = model.get_output_embeddings()
    if words is None:
        return LastLayer(hidden, last.weight, last.bias, logit_cap(model.config))
    rows = slice(words.first, words.stop)
    bias = None if last.bias is None else last.bias[rows]
    return LastLayer(hidden, last.weight[rows], bias, logit_cap(model.config), words.first)


def _of_words(words: ActionWords | None, output: Any) -> Any:
    """The output of a forward pass, of which a policy that acts never draws a word but its action words."""
    if words is not None:
        output.logits[..., : words.first] = -torch.inf
        output.logits[..., words.stop :] = -torch.inf
    return output
