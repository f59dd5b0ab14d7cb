"""What a job asks of generation: how tokens are drawn in training and in validation, and how many."""

from __future__ import annotations

import numpy as np

from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.batch import Indices
from rljob_worker.engines.rollout.requests import Sampling

VALIDATION_SEED_OFFSET = 1 << 32
"""Validation draws from another stream of random numbers than training."""

POLICY_SEED_OFFSET = 1 << 33
"""Each policy draws from streams of its own: two that begin as one model give different responses to a prompt."""


def training_sampling(spec: RLJobSpec, policy: str) -> Sampling:
    """From the full distribution, of which the loss takes the tokens to be."""
    rollout = spec.rollout
    return Sampling(
        temperature=rollout.temperature,
        seed=_seed_of(spec, policy),
        stop=rollout.stop,
        stop_token_ids=rollout.stop_token_ids,
    )


def validation_sampling(spec: RLJobSpec, policy: str) -> Sampling:
    """As the policy will be used; what ends a response is the same as in training."""
    validation = spec.validation
    return Sampling(
        temperature=validation.temperature,
        top_p=validation.top_p,
        top_k=validation.top_k,
        min_p=validation.min_p,
        seed=_seed_of(spec, policy) + VALIDATION_SEED_OFFSET,
        stop=spec.rollout.stop,
        stop_token_ids=spec.rollout.stop_token_ids,
    )


def _seed_of(spec: RLJobSpec, policy: str) -> int:
    """The seed of the job, for the first policy; less than 2 ** 38 for any."""
    return spec.seed + spec.policies.index(policy) * POLICY_SEED_OFFSET


def max_tokens_of(spec: RLJobSpec, num_prompt_tokens: Indices) -> Indices:
    """The longest response to prompts of n tokens: what is left of the longest row, if that is less than a
    response may have."""
    return np.minimum(spec.rollout.max_response_tokens, spec.longest_row - num_prompt_tokens)
