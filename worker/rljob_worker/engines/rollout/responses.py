"""Responses while they grow, and the table of those that have ended."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from rljob_worker.batch import Column, Indices
from rljob_worker.engines.rollout.requests import EndedRequests, Ending, PartialResponses, Requests, Sampling
from rljob_worker.engines.rollout.sampling import draw_numbers
from rljob_worker.engines.rollout.stop_strings import StopStrings
from rljob_worker.engines.rollout.top_log_probs import GrowingTop
from rljob_worker.random_bits import random_streams

Likely = tuple[Sequence[int], Sequence[float]]
"""The most likely tokens at one position, and their log-probs."""


@dataclass(slots=True)
class Response:
    """What is asked for, and what there is of it."""

    row_id: int
    turn: int
    prompt: Indices
    max_tokens: int
    sampling: Sampling
    stream: int
    """Stream of random numbers: see `random_streams`."""
    first_draw: int
    """See `draw_numbers`: of its first token."""
    stops: StopStrings | None = None
    """Texts that end it."""
    pictures: bytes = b""
    """The encoded pictures of its prompt, a `PictureList`."""
    handle: str = ""
    """The library's name of the request."""
    num_before: int = 0
    """Tokens that it had when the library got it."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """The policy version each token was sampled from."""
    top: GrowingTop | None = None
    """Likely tokens beside those that it draws; None where nobody asks."""
    is_stopped: bool = False
    """Whether its last token ends a stop text."""
    spoilt_by: int | None = None
    """The policy version whose logits after its last token were not finite: there is no more to come."""
    is_open: bool = False
    """Whether the library has the request."""

    @property
    def name(self) -> str:
        """By which the library is asked for it."""
        return str(self.row_id)

    @property
    def num_new(self) -> int:
        """Tokens since the library got it."""
        return len(self.tokens) - self.num_before

    def sequence(self) -> list[int]:
        """What the next token follows."""
        return [*self.prompt.tolist(), *self.tokens]

    def add(self, tokens: Sequence[int], log_probs: Sequence[float], version: int, top: Sequence[Likely] = ()) -> None:
        """The next tokens, up to where a stop text ends among them, or to a log-prob that is not finite. top: likely
        tokens beside each, where they are asked for."""
        if self.spoilt_by is not None:
            return
        if self.stops is not None and (end := self._stopped_after(tokens)) is not None:
            tokens, log_probs = tokens[:end], log_probs[:end]
            self.is_stopped = True
        if not all(map(isfinite, log_probs)):
            end = next(at for at, log_prob in enumerate(log_probs) if not isfinite(log_prob))
            tokens, log_probs = tokens[:end], log_probs[:end]
            self.is_stopped, self.spoilt_by = False, version
        self.tokens.extend(tokens)
        self.log_probs.extend(log_probs)
        self.versions.extend([version] * len(tokens))
        if self.top is not None:
            for likely in top[: len(tokens)]:
                self.top.add(*likely)

    def ending(self, end_token_ids: Container[int], *, is_finished: bool) -> Ending | None:
        """Why it has ended: None while it goes on, and where it is spoilt. is_finished: the library says so, for a
        token that ends it or its length, which it may reach with such a token."""
        if self.spoilt_by is not None:
            return None
        last = self.tokens[-1] if self.tokens else None
        if is_finished and not self.is_stopped and last in end_token_ids:
            return Ending.END_TOKEN
        if self.is_stopped or (is_finished and last in self.sampling.stop_token_ids):
            return Ending.STOP
        return Ending.LENGTH if is_finished else None

    def _stopped_after(self, tokens: Sequence[int]) -> int | None:
        """How many of the next tokens there are up to the one in which a stop text ends."""
        assert self.stops is not None
        for at in np.flatnonzero(self.stops.may_end(np.array(tokens, np.int64))).tolist():
            if self.stops.have_ended(np.array([*self.tokens, *tokens[: at + 1]], np.int64)):
                return at + 1
        return None


def responses_of(requests: Requests, stops: Sequence[StopStrings | None]) -> list[Response]:
    """One for each request, with the tokens that it brings. stops: of each of the samplings."""
    ways = np.zeros(len(requests), np.int64) if requests.sampling_of is None else requests.sampling_of
    begun = requests.begun
    num_begun = np.zeros(len(requests), np.int64) if begun is None else begun.response_ids.lengths
    draws = num_begun if requests.next_draws is None else requests.next_draws
    first = draw_numbers(requests.turns, draws - num_begun).tolist()
    result = list[Response]()
    for at, (row_id, way) in enumerate(zip(requests.row_ids.tolist(), ways.tolist(), strict=True)):
        sampling, prompt = requests.samplings[way], requests.prompts.row(int(requests.prompt_of[at]))
        stream = int(random_streams(sampling.seed, requests.row_ids[at : at + 1])[0])
        turn, most = int(requests.turns[at]), int(requests.max_tokens[at])
        response = Response(row_id, turn, prompt, most, sampling, stream, first[at], stops[way])
        response.top = GrowingTop.of(sampling)
        if requests.pictures is not None:
            response.pictures = requests.pictures.row(int(requests.prompt_of[at]))
        if begun is not None:
            response.tokens = begun.response_ids.row(at).tolist()
            response.log_probs = begun.log_probs.row(at).tolist()
            response.versions = begun.token_versions.row(at).tolist()
        result.append(response)
    return result


def ended_table(ended: Sequence[tuple[Response, Ending]]) -> EndedRequests:
    """One entry per response that has ended."""
    responses = [response for response, _ in ended]
    there = partial_responses(responses)
    return EndedRequests(
        row_ids=np.array([response.row_id for response in responses], np.int64),
        turns=np.array([response.turn for response in responses], np.int64),
        response_ids=there.response_ids,
        log_probs=there.log_probs,
        token_versions=there.token_versions,
        endings=np.array([ending for _, ending in ended], np.int8),
        top_log_probs={response.row_id: response.top.whole() for response in responses if response.top is not None},
    )


def partial_responses(responses: Sequence[Response]) -> PartialResponses:
    """What there is of them."""
    return PartialResponses(
        response_ids=Column.ragged([response.tokens for response in responses]),
        log_probs=Column.ragged([response.log_probs for response in responses], "float32"),
        token_versions=Column.ragged([response.versions for response in responses]),
    )
