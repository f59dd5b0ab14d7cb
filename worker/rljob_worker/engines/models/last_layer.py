"""A policy's forward that ends in log-probs in place of logits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from rljob_worker.engines.linear_log_probs import EntropyUse, linear_log_probs
from rljob_worker.engines.models.families import logit_cap


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of the last layer in one forward."""

    predicts: torch.Tensor
    """[tokens] positions of the pack whose logits predict."""
    targets: torch.Tensor
    """[tokens] the words that were drawn there."""
    temperature: float
    entropy: EntropyUse = "None"


def fuse_last_layer(model: PreTrainedModel) -> None:
    """A causal LM that is called with `wanted` gives (log_probs, entropy); without it nothing changes.

    It is the model's own forward, so that whoever gathers weights around it, gathers those of the last layer too.
    """
    model.forward = partial(_forward, model, model.forward)


def _forward(model: PreTrainedModel, stock: Any, *, wanted: Wanted | None = None, **inputs: Any) -> Any:
    if wanted is None:
        return stock(**inputs)
    hidden = model.base_model(**inputs).last_hidden_state[0].index_select(0, wanted.predicts)
    last = model.get_output_embeddings()
    return linear_log_probs(
        hidden,
        last.weight,
        last.bias,
        wanted.targets,
        wanted.temperature,
        cap=logit_cap(model.config),
        entropy=wanted.entropy,
    )
