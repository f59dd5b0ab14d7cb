"""What vLLM is asked to do with the logits of each request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rljob_worker.engines.rollout.requests import Requests
from rljob_worker.random_bits import random_bits


def sampling_of(requests: Requests, end_token_ids: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Arguments of vLLM's SamplingParams, a request at a time.

    The seed is a function of (seed, row_id, turn), and vLLM draws once per token from a generator of the request's
    own. End tokens are given as stop tokens: vLLM is not shown a tokenizer.
    """
    sampling = requests.sampling
    common = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "stop_token_ids": sorted({*end_token_ids, *sampling.stop_token_ids}),
        "ignore_eos": True,
        "logprobs": 0,  # of the sampled token alone
        "flat_logprobs": True,
        "detokenize": False,
    }
    seeds = random_bits(sampling.seed, requests.row_ids, requests.turns) >> 1  # torch's generators take 63 bits
    for seed, max_tokens in zip(seeds.tolist(), requests.max_tokens.tolist(), strict=True):
        yield {**common, "seed": seed, "max_tokens": max_tokens}
