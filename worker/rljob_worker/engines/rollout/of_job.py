"""What a job asks of generation: how tokens are drawn in training and in validation, and how many."""

from __future__ import annotations

import numpy as np

from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.batch import Indices
from rljob_worker.engines.rollout.requests import Sampling

VALIDATION_SEED_OFFSET = 1 << 32
"""Validation draws from another stream of random numbers than training."""


def training_sampling(spec: RLJobSpec) -> Sampling:
    """From the full distribution, of which the loss takes the tokens to be."""
    rollout = spec.rollout
    return Sampling(
        temperature=rollout.temperature, seed=spec.seed, stop=rollout.stop, stop_token_ids=rollout.stop_token_ids
    )


def validation_sampling(spec: RLJobSpec) -> Sampling:
    """As the policy will be used; what ends a response is the same as in training."""
    validation = spec.validation
    return Sampling(
        temperature=validation.temperature,
        top_p=validation.top_p,
        top_k=validation.top_k,
        min_p=validation.min_p,
        seed=spec.seed + VALIDATION_SEED_OFFSET,
        stop=spec.rollout.stop,
        stop_token_ids=spec.rollout.stop_token_ids,
    )


def max_tokens_of(spec: RLJobSpec, num_prompt_tokens: Indices) -> Indices:
    """The longest response to prompts of so many tokens: what is left of the longest row, if that is less than a
    response may have."""
    return np.minimum(spec.rollout.max_response_tokens, spec.longest_row - num_prompt_tokens)
