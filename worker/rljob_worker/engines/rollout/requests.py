"""What goes into a rollout engine and what comes out of it, as tables: one entry of every column is one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rljob_worker.batch import Column, Indices


class Ending(IntEnum):
    """Why a request ended."""

    END_TOKEN = 0
    """The model's end-of-sequence token, which is an action and stays in."""
    STOP = 1
    """A stop string or stop token of the job; the tokens that made it stay in."""
    LENGTH = 2
    """As many tokens as it may have, none of which ended it."""
    ABORTED = 3
    """`abort`: these are the tokens it had by then, possibly none."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to turn logits into tokens."""

    temperature: float = 1.0
    """Logits are divided by this before the softmax, in the draw and in every log-prob. 0 takes the most likely
    token."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; 1 keeps all. Below 1 in validation only."""
    top_k: int = 0
    """Keep this many most likely tokens; 0 keeps all. Above 0 in validation only."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the most likely one; 0 keeps all. Above 0 in validation only."""
    seed: int = 0
    """With row_id, turn and the position of the draw, the only source of randomness."""
    stop: tuple[str, ...] = ()
    """Texts that end a response, wherever in it they come to stand."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a response, besides the model's own end-of-sequence tokens."""
    top_log_probs: int = 0
    """How many of the most likely tokens come beside each that is drawn."""


MOST_TOP_LOG_PROBS = 20
"""That a request may ask for: OpenAI's bound, and vLLM's."""


@dataclass(frozen=True, slots=True, eq=False)
class TopLogProbs:
    """The most likely tokens at each position of a response, most likely first."""

    tokens: NDArray[np.int32]
    """[tokens, number]."""
    log_probs: NDArray[np.float32]
    """[tokens, number], as those of sampled tokens are: under the whole distribution at the sampling temperature."""

    def first(self, num_tokens: int) -> TopLogProbs:
        """Those of the first positions."""
        return TopLogProbs(self.tokens[:num_tokens], self.log_probs[:num_tokens])

    def then(self, later: TopLogProbs) -> TopLogProbs:
        """These, and those of the positions behind them; at each as many as all have."""
        number = min(self.tokens.shape[1], later.tokens.shape[1])
        tokens = np.concatenate([self.tokens[:, :number], later.tokens[:, :number]])
        return TopLogProbs(tokens, np.concatenate([self.log_probs[:, :number], later.log_probs[:, :number]]))


@dataclass(frozen=True, slots=True)
class PartialResponses:
    """What there is of responses that have not ended, one entry a request, possibly of no tokens."""

    response_ids: Column
    """Ragged int64 [requests]."""
    log_probs: Column
    """Ragged float32 [requests], as in `Ended`."""
    token_versions: Column
    """Ragged int64 [requests], as in `Ended`."""
    routes: Column | None = None
    """Ragged [requests], as in `Ended`; an engine that records routes asks for them with tokens that a request brings,
    and no other looks at them."""

    def take(self, places: Indices) -> PartialResponses:
        """Those of some requests."""
        return PartialResponses(
            self.response_ids.take(places),
            self.log_probs.take(places),
            self.token_versions.take(places),
            None if self.routes is None else self.routes.take(places),
        )


@dataclass(frozen=True, slots=True)
class Requests:
    """Responses that are asked for. A row has one request at a time, and a turn of its own for each."""

    row_ids: Indices
    """int64 [requests]."""
    turns: Indices
    """int64 [requests], from 0: which generation of its row a request is."""
    prompts: Column
    """Ragged int64 [prompts]: token ids, at least one each."""
    prompt_of: Indices
    """int64 [requests], ascending: the entry of `prompts` that a request continues, computed once for all that do."""
    max_tokens: Indices
    """int64 [requests], at least 1: the longest response, the token that ends it and those that it brings included."""
    samplings: tuple[Sampling, ...]
    """Ways to draw tokens, of this call alone."""
    sampling_of: Indices | None = None
    """int64 [requests]: the entry of `samplings` by which a request is drawn. None: all by the first."""
    begun: PartialResponses | None = None
    """Tokens that responses have already, fewer than they may have; they come back in front of those that are drawn.
    None: none has any."""
    pictures: Column | None = None
    """Binary [prompts]: the encoded pictures of each prompt, a `PictureList`; where it is there, prompts are those of
    one group each. None: nothing is shown."""
    states: Column | None = None
    """Ragged float32 [prompts]: what a simulator measured, of models that read it beside the prompt. None: nothing."""
    next_draws: Indices | None = None
    """int64 [requests], from 0: the position of the next draw of each. None: as many as it has tokens, so that a
    response goes on as if it had never been interrupted."""

    def __len__(self) -> int:
        return len(self.row_ids)

    def take(self, places: Indices) -> Requests:
        """Some of them, in ascending order, with the prompts that they continue."""
        prompts, prompt_of = np.unique(self.prompt_of[places], return_inverse=True)
        return Requests(
            row_ids=self.row_ids[places],
            turns=self.turns[places],
            prompts=self.prompts.take(prompts),
            prompt_of=prompt_of.astype(np.int64),
            max_tokens=self.max_tokens[places],
            samplings=self.samplings,
            sampling_of=None if self.sampling_of is None else self.sampling_of[places],
            begun=None if self.begun is None else self.begun.take(places),
            pictures=None if self.pictures is None else self.pictures.take(prompts),
            states=None if self.states is None else self.states.take(prompts),
            next_draws=None if self.next_draws is None else self.next_draws[places],
        )


@dataclass(frozen=True, slots=True)
class EndedRequests:
    """Requests that ended, in no order that means anything."""

    row_ids: Indices
    """int64 [requests]."""
    turns: Indices
    """int64 [requests]."""
    response_ids: Column
    """Ragged int64 [requests]: sampled tokens, what ended them included."""
    log_probs: Column
    """Ragged float32 [requests]: log-probability of each sampled token at the sampling temperature under the full
    distribution, before top-p, top-k and min-p. At temperature 0, at temperature 1."""
    token_versions: Column
    """Ragged int64 [requests]: the policy version that each token was sampled from."""
    endings: np.ndarray
    """int8 [requests], of `Ending`."""
    prompt_routes: Column | None = None
    """Ragged [requests], values [layers, k]: the experts of each token of a prompt, with the first request that
    continues it; none with others. None, as below, from an engine that does not record routes."""
    routes: Column | None = None
    """Ragged [requests], values [layers, k]: the experts of the position that each token was sampled from."""
    top_log_probs: Mapping[int, TopLogProbs] = field(default_factory=dict)
    """By row id, of requests that asked for them: of the tokens that were drawn, not of those that it brought."""

    def __len__(self) -> int:
        return len(self.row_ids)


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine has to do."""

    running: int
    """Requests that are decoded."""
    waiting: int
    """Requests that will be once there is room for them."""
    paused: int
    """Requests that wait for `resume`."""
    free_tokens: int
    """Tokens whose keys and values have room besides those of what runs."""
