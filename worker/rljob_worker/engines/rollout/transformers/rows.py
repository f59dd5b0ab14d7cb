"""The requests that are being decoded, in the order of the cache's rows: who they are, what they have, which ended."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch

from rljob_worker.batch import Indices
from rljob_worker.batch.row_index import row_number
from rljob_worker.engines.rollout.requests import Ending, Sampling
from rljob_worker.engines.rollout.sampling import draw_numbers, sample_each
from rljob_worker.engines.rollout.stop_strings import StopStrings
from rljob_worker.engines.rollout.top_log_probs import top_of_each
from rljob_worker.engines.rollout.transformers.drawn_tokens import DrawnTokens
from rljob_worker.engines.rollout.transformers.request import NO_ROUTES, DecodingRequest
from rljob_worker.errors import BadData
from rljob_worker.random_bits import random_streams

_DIVERGED = (
    "the policy has diverged; go on from a checkpoint before that, with a lower training.learningRate or maxGradNorm"
)
_BEGAN_SO = (
    "nothing is trained yet: it is the weights that the job begins with, or activations that training.precision "
    "has no room for; name another model, or write Float32"
)
Stops = tuple[tuple[str, ...], tuple[int, ...]]
"""Texts and tokens that end a response."""
GOES_ON = -1
"""In the place of an `Ending`."""


class DecodingRows:
    """Rows that ended stay, and draw nothing, until `keep` leaves them out."""

    def __init__(self, end_token_ids: tuple[int, ...], no_routes: np.ndarray = NO_ROUTES) -> None:
        """no_routes: of no tokens, as they are recorded."""
        self._end_token_ids = end_token_ids
        self._no_routes = no_routes
        self.clear()

    def clear(self) -> None:
        """No rows."""
        self._requests: list[DecodingRequest] = []
        self._ways: list[Sampling] = []
        """How rows are drawn, without seeds and stops; rows name them by number, as the next."""
        self._stops: dict[Stops, StopStrings | None] = {}
        """What ends them, with the texts of that made ready."""
        self._row_ids = self._limits = self._way_of = self._stops_of = self._num_top = np.empty(0, np.int64)
        self._streams = np.empty(0, np.uint64)
        """[rows] of random numbers."""
        self._first_draws = np.empty(0, np.int64)
        """[rows] `draw_numbers` of their first tokens."""
        self.rope_shifts = np.empty(0, np.int64)
        """[rows] as in `DecodingRequest`."""
        self._drawn = DrawnTokens(self._no_routes)
        self._endings = np.empty(0, np.int8)
        self.num_finished = 0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def finished(self) -> np.ndarray:
        """bool [rows]."""
        finished: np.ndarray = self._endings != GOES_ON
        return finished

    @property
    def running(self) -> list[int]:
        """Row ids of those that have not ended."""
        row_ids: list[int] = self._row_ids[~self.finished].tolist()
        return row_ids

    @property
    def unfinished(self) -> list[DecodingRequest]:
        """Those that have not ended; `request` gives one with the tokens it has."""
        return [self._requests[row] for row in np.flatnonzero(~self.finished).tolist()]

    @property
    def remaining(self) -> int:
        """Most tokens that a row may still draw."""
        return int((self._limits - self._drawn.counts).max(initial=0))

    def append(self, requests: Sequence[DecodingRequest]) -> None:
        """More rows, each with the tokens it has."""
        self._requests += requests
        self._row_ids = _extended(self._row_ids, (request.row_id for request in requests))
        self._limits = _extended(self._limits, (request.max_tokens for request in requests))
        turns, first = (np.array([getattr(request, name) for request in requests]) for name in ("turn", "first_draw"))
        self._first_draws = np.concatenate([self._first_draws, draw_numbers(turns, first)])
        self._streams = np.concatenate([self._streams, streams_of(requests)])
        self.rope_shifts = _extended(self.rope_shifts, (request.rope_shift for request in requests))
        self._append_samplings(requests)
        self._drawn.append([request.drawn for request in requests])
        self._endings = np.concatenate([self._endings, np.full(len(requests), GOES_ON, np.int8)])

    def _append_samplings(self, requests: Sequence[DecodingRequest]) -> None:
        """How they are drawn and what ends them: of requests that came together most are drawn alike."""
        firsts, sampling_of = sampling_kinds(requests)
        ways = [way_of(request.sampling) for request in firsts]
        self._ways = list(dict.fromkeys([*self._ways, *ways]))
        self._way_of = np.concatenate([self._way_of, _places(ways, self._ways)[sampling_of]])
        stops = [(request.sampling.stop, request.sampling.stop_token_ids) for request in firsts]
        for key, request in zip(stops, firsts, strict=True):
            self._stops.setdefault(key, request.stops)
        self._stops_of = np.concatenate([self._stops_of, _places(stops, self._stops)[sampling_of]])
        numbers = np.array([request.sampling.top_log_probs for request in firsts], np.int64)
        self._num_top = np.concatenate([self._num_top, numbers[sampling_of]])

    def draw(
        self, first: int, logits: torch.Tensor, version: int, routes: np.ndarray = NO_ROUTES
    ) -> tuple[torch.Tensor, list[int]]:
        """The next token of every row from `first` on, int64 [rows], and which of them end with it; `logits` [rows,
        vocabulary], and routes [rows, layers, k] where they are recorded. Raises BadData for logits that are not
        finite."""
        tokens, log_probs = self._sample(first, logits)
        going = np.arange(first, len(self))
        result, how_likely = tokens.cpu().numpy(), log_probs.float().cpu().numpy()
        if self.num_finished:
            going = going[self._endings[first:] == GOES_ON]
            result, how_likely = result[going - first], how_likely[going - first]
            routes = routes[going - first] if len(routes) else routes
        self._require_finite(going, how_likely, version)
        if self._num_top.any():
            self._add_top(going, logits, first)
        self._drawn.add(going, result, how_likely, version, routes)
        return tokens, self._end(going, result)

    def keep(self, order: Indices) -> None:
        """Row i is the former row `order[i]`."""
        self._requests = [self._requests[row] for row in order.tolist()]
        self._row_ids, self._limits, self._num_top = self._row_ids[order], self._limits[order], self._num_top[order]
        self._streams, self._first_draws = self._streams[order], self._first_draws[order]
        self._endings, self.rope_shifts = self._endings[order], self.rope_shifts[order]
        ways, self._way_of = np.unique(self._way_of[order], return_inverse=True)
        self._ways = [self._ways[number] for number in ways.tolist()]
        kept, self._stops_of = np.unique(self._stops_of[order], return_inverse=True)
        stops = list(self._stops.items())
        self._stops = dict(stops[number] for number in kept.tolist())
        self._drawn.keep(order)
        self.num_finished = int(self.finished.sum())

    def having(self, row_ids: Container[int]) -> list[int]:
        """Rows of these ids that have not ended."""
        return [row for row in np.flatnonzero(~self.finished).tolist() if self._requests[row].row_id in row_ids]

    def request(self, row: int) -> DecodingRequest:
        """The request of a row, with the tokens it has."""
        request = self._requests[row]
        request.drawn = self._drawn.of(row)
        return request

    def ending(self, row: int) -> Ending:
        return Ending(int(self._endings[row]))

    def _sample(self, first: int, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = slice(first, None)
        draws = self._first_draws[rows] + self._drawn.counts[rows]
        return sample_each(logits, self._ways, self._way_of[rows], self._streams[rows], draws)

    def _add_top(self, rows: Indices, logits: torch.Tensor, first: int) -> None:
        """Likely tokens beside the next ones of `rows`; logits: of the rows from `first` on."""
        asked = rows[self._num_top[rows] > 0]
        if not len(asked):
            return
        mine = logits[torch.from_numpy(asked - first).to(logits.device)]
        tokens, log_probs = top_of_each(mine, self._ways, self._way_of[asked], self._num_top[asked])
        for row, ids, values in zip(asked.tolist(), tokens.cpu().numpy(), log_probs.cpu().numpy(), strict=True):
            top = self._requests[row].top
            assert top is not None, "it asks for them"
            top.add(ids, values)

    def _end(self, rows: Indices, tokens: np.ndarray) -> list[int]:
        """End those of `rows` that do with the token they just got; which. Most steps end none, and look no closer."""
        is_full = self._drawn.counts[rows] >= self._limits[rows]
        is_end = is_one_of(tokens, self._end_token_ids)
        if not any(texts or tokens for texts, tokens in self._stops) and not (is_full | is_end).any():
            return []
        endings = self._endings_with(rows, tokens, is_full, is_end)
        self._endings[rows] = endings
        ended: list[int] = rows[endings != GOES_ON].tolist()
        self.num_finished += len(ended)
        return ended

    def _endings_with(self, rows: Indices, tokens: np.ndarray, is_full: np.ndarray, is_end: np.ndarray) -> np.ndarray:
        """How each of `rows` ends with the token it just got, or that it goes on; an end token says so first."""
        endings = np.full(len(rows), GOES_ON, np.int8)
        endings[is_full] = Ending.LENGTH
        for kind, ((_, stop_tokens), stops) in enumerate(self._stops.items()):
            if stop_tokens or stops is not None:
                mine = self._stops_of[rows] == kind
                endings[mine & is_one_of(tokens, stop_tokens)] = Ending.STOP
                endings[self._with_stop_text(rows, tokens, mine, stops)] = Ending.STOP
        endings[is_end] = Ending.END_TOKEN
        return endings

    def _with_stop_text(
        self, rows: Indices, tokens: np.ndarray, mine: np.ndarray, stops: StopStrings | None
    ) -> list[int]:
        """Which of `mine` have a stop text that ends in the token they just got, as places in `rows`."""
        if stops is None:
            return []
        candidates = np.flatnonzero(mine & stops.may_end(tokens)).tolist()
        return [at for at in candidates if stops.have_ended(self._drawn.tokens(int(rows[at])))]

    def _require_finite(self, rows: Indices, log_probs: np.ndarray, version: int) -> None:
        require_finite(self._row_ids[rows], log_probs, self._drawn.counts[rows], version)


def require_finite(row_ids: Indices, log_probs: np.ndarray, counts: Indices, version: int) -> None:
    """Raises BadData for a log-prob that is not finite, naming its row. All [tokens]; counts: tokens before each."""
    if np.isfinite(log_probs).all():
        return
    at = int(np.flatnonzero(~np.isfinite(log_probs))[0])
    raise BadData(
        f"row {row_number(row_ids[at])}: the logits of policy version {version} are not finite after "
        f"{counts[at]} tokens of its response: {_DIVERGED if version else _BEGAN_SO}"
    )


def is_one_of(tokens: np.ndarray, chosen: tuple[int, ...]) -> np.ndarray:
    """bool [rows]; for the few that there are, faster than `np.isin`."""
    is_end = np.zeros(len(tokens), bool)
    for token in chosen:
        is_end |= tokens == token
    return is_end


def way_of(sampling: Sampling) -> Sampling:
    """What of a sampling decides how a row is drawn from its logits and its random numbers."""
    return replace(sampling, seed=0, stop=(), stop_token_ids=(), top_log_probs=0)


def sampling_kinds(requests: Sequence[DecodingRequest]) -> tuple[list[DecodingRequest], Indices]:
    """The first request of each sampling, and for each request which of these is drawn as it is: [requests]."""
    firsts = dict[Sampling, DecodingRequest]()
    for request in requests:
        firsts.setdefault(request.sampling, request)
    return list(firsts.values()), _places((request.sampling for request in requests), firsts)


def streams_of(requests: Sequence[DecodingRequest]) -> np.ndarray:
    """uint64 [requests]."""
    streams, by_seed = np.empty(len(requests), np.uint64), dict[int, list[int]]()
    for at, request in enumerate(requests):
        by_seed.setdefault(request.sampling.seed, []).append(at)
    for seed, mine in by_seed.items():
        streams[mine] = random_streams(seed, np.array([requests[at].row_id for at in mine]))
    return streams


def _places(values: Iterable[Hashable], known: Iterable[Hashable]) -> Indices:
    """Where each of the values is among the known."""
    places = {item: place for place, item in enumerate(known)}
    return np.fromiter((places[item] for item in values), np.int64)


def _extended(column: Indices, more: Iterable[int]) -> Indices:
    return np.concatenate([column, np.fromiter(more, np.int64)])
