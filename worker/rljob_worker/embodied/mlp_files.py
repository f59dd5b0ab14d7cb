"""Writes an untrained MLP policy as a model directory, with a tokenizer whose words are bins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from rljob_worker.engines.models.actions import MLPPolicy, MLPPolicyConfig

PROMPT_WORD = "<state>"


def write_mlp_policy(
    directory: Path,
    *,
    state_size: int,
    dimensions: int,
    chunk: int = 1,
    bins: int = 256,
    hidden_size: int = 64,
    norm_stats: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> MLPPolicy:
    """Write config, weights and tokenizer; the policy, in float32, for who trains it on.

    state_size: numbers of a state; chunk: actions of a decision, each of as many dimensions. norm_stats: as in
    `embodied.actions`; None: actions stay between -1 and 1.
    """
    config = MLPPolicyConfig(
        state_size=state_size,
        hidden_size=hidden_size,
        action_tokens={"bins": bins, "chunk": chunk, "dimensions": dimensions},
        norm_stats=dict(norm_stats or {}),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MLPPolicy(config)
    model.save_pretrained(directory)
    words = {str(number): number for number in range(bins)} | {PROMPT_WORD: bins}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=PROMPT_WORD))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=PROMPT_WORD).save_pretrained(directory)
    return model
