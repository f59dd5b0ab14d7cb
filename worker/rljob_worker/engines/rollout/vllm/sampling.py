"""What vLLM is asked to do with the logits of each request, and what its sampler knows of the rows of a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rljob_worker.batch import Indices
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.rollout.responses import Response
from rljob_worker.engines.rollout.sampling import sample_each
from rljob_worker.engines.rollout.top_log_probs import top_of_each

_OURS = "rljob"
"""Under which the sampler finds what vLLM itself has no field for."""


def arguments_of(response: Response, end_token_ids: tuple[int, ...]) -> dict[str, Any]:
    """Arguments of vLLM's SamplingParams for the rest of a response.

    End tokens are given as stop tokens: vLLM is not shown a tokenizer. What leaves a part of the distribution goes to
    our own sampler, whose log-probs are of the whole.
    """
    sampling = response.sampling
    way = [sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p]
    return {
        "temperature": sampling.temperature,
        "stop_token_ids": sorted({*end_token_ids, *sampling.stop_token_ids}),
        "max_tokens": response.max_tokens - len(response.tokens),
        "ignore_eos": True,
        "logprobs": sampling.top_log_probs,  # besides that of the sampled token
        "flat_logprobs": True,
        "detokenize": False,
        "skip_clone": True,
        "extra_args": {
            _OURS: [response.stream, response.first_draw + len(response.tokens), sampling.top_log_probs, *way]
        },
    }


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """How the requests of a batch are drawn, in its order."""

    ways: tuple[Sampling, ...]
    way_of: Indices
    """[rows], of the ways."""
    streams: np.ndarray
    """uint64 [rows]."""
    first_draws: Indices
    """[rows] of the first token that vLLM draws for each."""
    num_top: Indices
    """[rows] likely tokens that each asks for beside those that it draws."""

    @staticmethod
    def of(extra_args: Iterable[dict[str, Any]]) -> DrawnRows:
        """From what each request was added with."""
        arguments = [extra_arg[_OURS] for extra_arg in extra_args]
        ways = [Sampling(*argument[3:]) for argument in arguments]
        places = {way: place for place, way in enumerate(dict.fromkeys(ways))}
        return DrawnRows(
            tuple(places),
            np.array([places[way] for way in ways], np.int64),
            np.array([argument[0] for argument in arguments], np.uint64),
            np.array([argument[1] for argument in arguments], np.int64),
            np.array([argument[2] for argument in arguments], np.int64),
        )

    def sample(self, logits: torch.Tensor, num_drawn: Indices) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens int64 [rows] and their log-probs [rows]; num_drawn: [rows], what vLLM drew for each before."""
        return sample_each(logits, self.ways, self.way_of, self.streams, self.first_draws + num_drawn)

    def top(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Likely tokens int64 [rows, most] and their log-probs [rows, most], of rows that do not ask 0; None where none
        does."""
        asked = np.flatnonzero(self.num_top)
        if not len(asked):
            return None
        at = torch.from_numpy(asked).to(logits.device)
        some_tokens, some_log_probs = top_of_each(logits[at], self.ways, self.way_of[asked], self.num_top[asked])
        tokens = some_tokens.new_zeros((len(logits), some_tokens.shape[1]))
        log_probs = some_log_probs.new_zeros(tokens.shape)
        tokens[at], log_probs[at] = some_tokens, some_log_probs
        return tokens, log_probs

    def repeated(self, times: Indices) -> DrawnRows:
        """Each row n times in a row."""
        columns = (self.way_of, self.streams, self.first_draws, self.num_top)
        return DrawnRows(self.ways, *(np.repeat(item, times) for item in columns))
