"""The requests that are being decoded, in the order of the cache's rows: who they are, what they have, which ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from rljob_worker.batch import Indices
from rljob_worker.engines.rollout.requests import Ending, Sampling
from rljob_worker.engines.rollout.stop_strings import StopStrings
from rljob_worker.engines.rollout.transformers.drawn_tokens import DrawnTokens
from rljob_worker.engines.rollout.transformers.request import NO_ROUTES, Request
from rljob_worker.engines.rollout.transformers.sampling import sample
from rljob_worker.errors import BadData
from rljob_worker.row_index import row_number

_DIVERGED = (
    "the policy has diverged; go on from a checkpoint before that, with a lower training.learningRate or maxGradNorm"
)
_BEGAN_SO = (
    "nothing is trained yet: it is the weights that the job begins with, or activations that training.precision "
    "has no room for; name another model, or write Float32"
)
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
        self._requests: list[Request] = []
        self._samplings: dict[Sampling, StopStrings | None] = {}
        """How rows are drawn, with the stop texts of that; rows name them by number."""
        self._row_ids = self._turns = self._limits = self._sampling_of = np.empty(0, np.int64)
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
    def remaining(self) -> int:
        """Most tokens that a row may still draw."""
        return int((self._limits - self._drawn.counts).max(initial=0))

    def append(self, requests: Sequence[Request]) -> None:
        """More rows, each with the tokens it has."""
        self._requests += requests
        self._row_ids = _extended(self._row_ids, (request.row_id for request in requests))
        self._turns = _extended(self._turns, (request.turn for request in requests))
        self._limits = _extended(self._limits, (request.max_tokens for request in requests))
        for request in requests:
            self._samplings.setdefault(request.sampling, request.stops)
        numbers = {sampling: number for number, sampling in enumerate(self._samplings)}
        self._sampling_of = _extended(self._sampling_of, (numbers[request.sampling] for request in requests))
        self._drawn.append([request.drawn for request in requests])
        self._endings = np.concatenate([self._endings, np.full(len(requests), GOES_ON, np.int8)])

    def draw(
        self, first: int, logits: torch.Tensor, version: int, routes: np.ndarray = NO_ROUTES
    ) -> tuple[torch.Tensor, list[int]]:
        """The next token of every row from `first` on, int64 [rows], and which of them end with it; `logits` [rows,
        vocabulary], and routes [rows, layers, k] where they are recorded. Raises BadData for logits that are not
        finite."""
        tokens, log_probs = self._sample(first, logits)
        going = np.arange(first, len(self))
        found, how_likely = tokens.cpu().numpy(), log_probs.float().cpu().numpy()
        if self.num_finished:
            going = going[self._endings[first:] == GOES_ON]
            found, how_likely = found[going - first], how_likely[going - first]
            routes = routes[going - first] if len(routes) else routes
        self._require_finite(going, how_likely, version)
        self._drawn.add(going, found, how_likely, version, routes)
        return tokens, self._end(going, found)

    def abort(self, row_ids: Indices) -> list[int]:
        """End rows as they are; which."""
        rows = np.flatnonzero(np.isin(self._row_ids, row_ids) & ~self.finished)
        self._endings[rows] = Ending.ABORTED
        self.num_finished += len(rows)
        return rows.tolist()

    def keep(self, order: Indices) -> None:
        """Row i is the former row `order[i]`."""
        self._requests = [self._requests[row] for row in order.tolist()]
        self._row_ids, self._turns, self._limits = self._row_ids[order], self._turns[order], self._limits[order]
        self._endings = self._endings[order]
        self._keep_samplings(self._sampling_of[order])
        self._drawn.keep(order)
        self.num_finished = int(self.finished.sum())

    def _keep_samplings(self, sampling_of: Indices) -> None:
        """Those of the rows that stay, and no others."""
        kept, self._sampling_of = np.unique(sampling_of, return_inverse=True)
        samplings = list(self._samplings.items())
        self._samplings = dict(samplings[number] for number in kept.tolist())

    def request(self, row: int) -> Request:
        """The request of a row, with the tokens it has."""
        return self._requests[row].with_drawn(self._drawn.of(row))

    def ending(self, row: int) -> Ending:
        return Ending(int(self._endings[row]))

    def _sample(self, first: int, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kinds = self._sampling_of[first:]
        samplings = list(self._samplings)
        if (kinds == kinds[0]).all():
            return self._sample_alike(slice(first, None), logits, samplings[kinds[0]])
        tokens = torch.empty(len(kinds), dtype=torch.int64, device=logits.device)
        log_probs = torch.empty(len(kinds), dtype=torch.promote_types(logits.dtype, torch.float32)).to(logits.device)
        for kind in np.unique(kinds).tolist():
            rows = np.flatnonzero(kinds == kind)
            at = torch.from_numpy(rows).to(logits.device)
            tokens[at], log_probs[at] = self._sample_alike(first + rows, logits[at], samplings[kind])
        return tokens, log_probs

    def _sample_alike(
        self, rows: Indices | slice, logits: torch.Tensor, sampling: Sampling
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return sample(logits, sampling, self._row_ids[rows], self._turns[rows], self._drawn.counts[rows])

    def _end(self, rows: Indices, tokens: np.ndarray) -> list[int]:
        """End those of `rows` that do with the token they just got; which. Most steps end none, and look no closer."""
        is_full = self._drawn.counts[rows] >= self._limits[rows]
        is_end = is_one_of(tokens, self._end_token_ids)
        may_stop = any(sampling.stop or sampling.stop_token_ids for sampling in self._samplings)
        if not may_stop and not (is_full | is_end).any():
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
        for kind, (sampling, stops) in enumerate(self._samplings.items()):
            if sampling.stop_token_ids or stops is not None:
                mine = self._sampling_of[rows] == kind
                endings[mine & is_one_of(tokens, sampling.stop_token_ids)] = Ending.STOP
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
        if np.isfinite(log_probs).all():
            return
        row = int(rows[np.flatnonzero(~np.isfinite(log_probs))[0]])
        raise BadData(
            f"row {row_number(self._row_ids[row])}: the logits of policy version {version} are not finite after "
            f"{self._drawn.counts[row]} tokens of its response: {_DIVERGED if version else _BEGAN_SO}"
        )


def is_one_of(tokens: np.ndarray, chosen: tuple[int, ...]) -> np.ndarray:
    """bool [rows]; for the few that there are, faster than `np.isin`."""
    found = np.zeros(len(tokens), bool)
    for token in chosen:
        found |= tokens == token
    return found


def _extended(column: Indices, more: Iterable[int]) -> Indices:
    return np.concatenate([column, np.fromiter(more, np.int64)])
