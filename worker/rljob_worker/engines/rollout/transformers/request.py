"""One request while it waits, with what it has so far: it may have been decoded before, and been put back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rljob_worker.batch import Column, Indices
from rljob_worker.engines.prompt_pictures import ShownTokens
from rljob_worker.engines.rollout.requests import EndedRequests, Ending, PartialResponses, Requests, Sampling
from rljob_worker.engines.rollout.stop_strings import StopStrings
from rljob_worker.engines.rollout.top_log_probs import GrowingTop


@dataclass(slots=True, eq=False)
class Drawn:
    """The tokens of a response so far, and how they were drawn; all [tokens]."""

    tokens: np.ndarray
    log_probs: np.ndarray
    versions: np.ndarray
    routes: np.ndarray
    """[tokens, layers, k] of the position before each; [tokens, 0, 0] where they are not recorded."""

    def __len__(self) -> int:
        return len(self.tokens)


NO_ROUTES = np.empty((0, 0, 0), np.uint8)
"""What is recorded where routes are not."""
NOTHING = Drawn(np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.int32), NO_ROUTES)


@dataclass(slots=True, eq=False)
class DecodingRequest:
    """What is asked for, and what there is of it: it changes, so that a generation makes one a row and no more."""

    row_id: int
    turn: int
    prompt: Indices
    max_tokens: int
    sampling: Sampling
    drawn: Drawn = NOTHING
    """While the request is decoded, what it had when somebody last looked: all is in `DrawnTokens`."""
    first_draw: int = 0
    """The position that the draw of its first token had, or would have had: below 0 where it goes on from fewer."""
    stops: StopStrings | None = None
    """The stop texts of its sampling, if that has any."""
    begins_prompt: bool = False
    """Whether it is the first to continue its prompt, and says how that was routed."""
    pictures: bytes = b""
    """The encoded pictures of its prompt, a `PictureList`."""
    state: np.ndarray | None = None
    """float32 [numbers]: what a simulator measured, of models that read it."""
    rope_shift: int = 0
    """What is added to the place of a token of the response to get its position, once the prompt was computed."""
    prompt_routes: np.ndarray | None = None
    """[prompt, layers, k], once the prompt was computed where routes are recorded; of the first to continue it only."""
    top: GrowingTop | None = None
    """Likely tokens beside those that it draws; None where nobody asks."""

    @property
    def num_tokens(self) -> int:
        """Tokens to compute before the next one can be drawn."""
        return len(self.prompt) + len(self.drawn)

    @property
    def longest(self) -> int:
        """Tokens of the prompt and the longest response."""
        return len(self.prompt) + self.max_tokens

    @property
    def remaining(self) -> int:
        """Tokens that may still be drawn."""
        return self.max_tokens - len(self.drawn)

    def sequence(self) -> Indices:
        """What the next token follows."""
        return np.concatenate([self.prompt, self.drawn.tokens]) if len(self.drawn) else self.prompt

    def is_that_of(self, other: DecodingRequest | None) -> bool:
        """Whether both came as one."""
        return (
            other is not None and (self.row_id, self.turn) == (other.row_id, other.turn) and self.prompt is other.prompt
        )

    def follows_the_same(self, other: DecodingRequest) -> bool:
        """Whether one computation does for the next token of both."""
        return self.prompt is other.prompt and not len(self.drawn) and not len(other.drawn)


def requests_of(
    table: Requests, stops: Sequence[StopStrings | None], no_routes: np.ndarray = NO_ROUTES
) -> list[DecodingRequest]:
    """The entries of a table, one by one; those that continue the same prompt share it. stops: of each of its
    samplings. no_routes: of no tokens, as they are recorded."""
    prompts, drawn = table.prompts.to_list(), _begun(table, no_routes)
    pictures = [b""] * len(prompts) if table.pictures is None else table.pictures.to_list()
    states = [None] * len(prompts) if table.states is None else table.states.to_list()
    ways = np.zeros(len(table), np.int64) if table.sampling_of is None else table.sampling_of
    begins = np.diff(table.prompt_of, prepend=-1) != 0
    columns = (table.row_ids, table.turns, table.prompt_of, table.max_tokens, ways, _first_draws(table), begins)
    entries = zip(*(column.tolist() for column in columns), drawn, strict=True)
    return [
        DecodingRequest(
            row,
            turn,
            prompts[prompt],
            most,
            table.samplings[way],
            has,
            first,
            stops[way],
            begins_prompt=begin,
            pictures=pictures[prompt],
            state=states[prompt],
            top=GrowingTop.of(table.samplings[way]),
        )
        for row, turn, prompt, most, way, first, begin, has in entries
    ]


def _first_draws(table: Requests) -> Indices:
    num_begun = 0 if table.begun is None else table.begun.response_ids.lengths
    draws = num_begun if table.next_draws is None else table.next_draws
    first: Indices = np.broadcast_to(draws - num_begun, len(table))
    return first


def _begun(table: Requests, no_routes: np.ndarray) -> Sequence[Drawn]:
    """What each of the requests brings."""
    begun = table.begun
    if begun is None:
        return [NOTHING] * len(table)
    lengths = begun.response_ids.lengths
    routes = begun.routes if no_routes.shape[1] else None
    if routes is None:
        routes = Column.from_lengths(np.empty((int(lengths.sum()), *no_routes.shape[1:]), no_routes.dtype), lengths)
    columns = (begun.response_ids, begun.log_probs, begun.token_versions, routes)
    return [Drawn(*item) for item in zip(*(column.to_list() for column in columns), strict=True)]


def sequences_of(requests: Sequence[DecodingRequest]) -> tuple[Column, Indices]:
    """The different sequences that requests go on from, and which is each one's (ascending): that of a prompt comes
    once for neighbours that have drawn nothing."""
    sequences: list[Indices] = []
    sequence_of = np.empty(len(requests), np.int64)
    for at, request in enumerate(requests):
        if not at or not request.follows_the_same(requests[at - 1]):
            sequences.append(request.sequence())
        sequence_of[at] = len(sequences) - 1
    return Column.ragged(sequences), sequence_of


def keep_prompt_routes(
    requests: Sequence[DecodingRequest], routes: np.ndarray, sequences: Column, sequence_of: Indices
) -> None:
    """For requests whose sequences were just computed with these routes [tokens of the sequences, layers, k]: the first
    to continue a prompt keep those of it."""
    if not len(routes):
        return
    assert sequences.offsets is not None
    for request, begin in zip(requests, sequences.offsets[sequence_of].tolist(), strict=True):
        if request.begins_prompt and request.prompt_routes is None:
            request.prompt_routes = routes[begin : begin + len(request.prompt)].copy()


def keep_rope_shifts(
    requests: Sequence[DecodingRequest], shown: Sequence[ShownTokens] | None, sequence_of: Indices
) -> None:
    """Positions of responses, for their requests. shown: what the prompt of each sequence shows; sequence_of: which
    sequence is each one's."""
    if shown is not None:
        for request, at in zip(requests, sequence_of.tolist(), strict=True):
            request.rope_shift = shown[at].rope_shift


def ended(requests: Sequence[tuple[DecodingRequest, Ending]], no_routes: np.ndarray = NO_ROUTES) -> EndedRequests:
    """Requests that ended, as a table. no_routes: of no tokens, as they are recorded."""
    there = partial_responses([request for request, _ in requests], no_routes)
    prompt_routes = None
    if no_routes.shape[1]:
        known = [request.prompt_routes for request, _ in requests]
        prompt_routes = _joined([no_routes if item is None else item for item in known], no_routes)
    return EndedRequests(
        row_ids=np.array([request.row_id for request, _ in requests], np.int64),
        turns=np.array([request.turn for request, _ in requests], np.int64),
        response_ids=there.response_ids,
        log_probs=there.log_probs,
        token_versions=there.token_versions,
        endings=np.array([ending for _, ending in requests], np.int8),
        prompt_routes=prompt_routes,
        routes=there.routes,
        top_log_probs={request.row_id: request.top.whole() for request, _ in requests if request.top is not None},
    )


def partial_responses(requests: Sequence[DecodingRequest], no_routes: np.ndarray = NO_ROUTES) -> PartialResponses:
    """What requests have, as a table."""
    drawn = [request.drawn for request in requests] or [NOTHING]
    lengths = np.array([len(request.drawn) for request in requests], np.int64)

    def column(parts: list[np.ndarray], dtype: type) -> Column:
        return Column.from_lengths(np.concatenate(parts).astype(dtype, copy=False), lengths)

    routes = [item.routes if len(item) else no_routes for item in drawn]
    return PartialResponses(
        response_ids=column([item.tokens for item in drawn], np.int64),
        log_probs=column([item.log_probs for item in drawn], np.float32),
        token_versions=column([item.versions for item in drawn], np.int64),
        routes=_joined(routes[: len(requests)], no_routes) if no_routes.shape[1] else None,
    )


def _joined(parts: list[np.ndarray], no_routes: np.ndarray) -> Column:
    return Column.from_lengths(np.concatenate([no_routes, *parts]), [len(part) for part in parts])
