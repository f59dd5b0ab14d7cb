"""One request while it waits, with what it has so far: it may have been decoded before, and been put back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rljob_worker.batch import Column, Indices
from rljob_worker.engines.rollout.requests import Ended, Ending, Requests, Sampling
from rljob_worker.engines.rollout.stop_strings import StopStrings


@dataclass(frozen=True, slots=True, eq=False)
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


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What is asked for, and what there is of it."""

    row_id: int
    turn: int
    prompt: Indices
    max_tokens: int
    sampling: Sampling
    drawn: Drawn = NOTHING
    stops: StopStrings | None = None
    """The stop texts of its sampling, if that has any."""
    begins_prompt: bool = False
    """Whether it is the first to continue its prompt, and says how that was routed."""
    prompt_routes: np.ndarray | None = None
    """[prompt, layers, k], once the prompt was computed where routes are recorded; of the first to continue it only."""

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

    def with_drawn(self, drawn: Drawn) -> Request:
        return replace(self, drawn=drawn)

    def follows_the_same(self, other: Request) -> bool:
        """Whether one computation does for the next token of both."""
        return self.prompt is other.prompt and not len(self.drawn) and not len(other.drawn)


def requests_of(table: Requests, stops: StopStrings | None = None) -> Iterator[Request]:
    """The entries of a table, one by one; those that continue the same prompt share it. stops: of its
    sampling."""
    prompts = table.prompts.to_list()
    begins = np.diff(table.prompt_of, prepend=-1) != 0
    columns = (table.row_ids, table.turns, table.prompt_of, table.max_tokens, begins)
    for row_id, turn, prompt, max_tokens, first in zip(*(column.tolist() for column in columns), strict=True):
        yield Request(row_id, turn, prompts[prompt], max_tokens, table.sampling, stops=stops, begins_prompt=first)


def sequences_of(requests: Sequence[Request]) -> tuple[Column, Indices]:
    """The different sequences that requests go on from, and which is each one's (ascending): that of a prompt comes
    once for neighbours that have drawn nothing."""
    sequences: list[Indices] = []
    sequence_of = np.empty(len(requests), np.int64)
    for at, request in enumerate(requests):
        if not at or not request.follows_the_same(requests[at - 1]):
            sequences.append(request.sequence())
        sequence_of[at] = len(sequences) - 1
    return Column.ragged(sequences), sequence_of


def with_prompt_routes(
    requests: Sequence[Request], routes: np.ndarray, sequences: Column, sequence_of: Indices
) -> list[Request]:
    """Requests whose sequences were just computed with these routes [tokens of the sequences, layers, k]: the first to
    continue a prompt keep those of it."""
    assert sequences.offsets is not None
    found = list(requests)
    for at, (request, begin) in enumerate(zip(requests, sequences.offsets[sequence_of].tolist(), strict=True)):
        if len(routes) and request.begins_prompt and request.prompt_routes is None:
            found[at] = replace(request, prompt_routes=routes[begin : begin + len(request.prompt)].copy())
    return found


def ended(requests: Sequence[tuple[Request, Ending]], no_routes: np.ndarray = NO_ROUTES) -> Ended:
    """Requests that ended, as a table. no_routes: of no tokens, as they are recorded."""
    drawn = [request.drawn for request, _ in requests] or [NOTHING]
    lengths = np.array([len(request.drawn) for request, _ in requests], np.int64)

    def column(parts: list[np.ndarray], dtype: type) -> Column:
        return Column.from_lengths(np.concatenate(parts).astype(dtype, copy=False), lengths)

    return Ended(
        row_ids=np.array([request.row_id for request, _ in requests], np.int64),
        turns=np.array([request.turn for request, _ in requests], np.int64),
        response_ids=column([each.tokens for each in drawn], np.int64),
        log_probs=column([each.log_probs for each in drawn], np.float32),
        token_versions=column([each.versions for each in drawn], np.int64),
        endings=np.array([ending for _, ending in requests], np.int8),
        **_routes_of([request for request, _ in requests], no_routes),
    )


def _routes_of(requests: Sequence[Request], no_routes: np.ndarray) -> dict[str, Column]:
    if not no_routes.shape[1]:
        return {}
    prompts = [no_routes if each.prompt_routes is None else each.prompt_routes for each in requests]
    responses = [each.drawn.routes if len(each.drawn) else no_routes for each in requests]
    return {"prompt_routes": _joined(prompts, no_routes), "routes": _joined(responses, no_routes)}


def _joined(parts: list[np.ndarray], no_routes: np.ndarray) -> Column:
    return Column.from_lengths(np.concatenate([no_routes, *parts]), [len(part) for part in parts])
