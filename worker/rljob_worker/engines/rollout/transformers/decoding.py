"""Admit, step and retire: continuous batching over one cache.

Each distinct prompt is prefilled once, packed; its keys are copied to the rows of its group. Rows decode together; a
row that ends makes room for the next one waiting, or the batch shrinks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from rljob_api.memory.sizes import PREFILL_TOKENS
from rljob_worker.batch import Column, Indices
from rljob_worker.engines.packing import micro_batches
from rljob_worker.engines.picture_reader import PictureReader, picture_digests
from rljob_worker.engines.prompt_pictures import ShownTokens
from rljob_worker.engines.rollout.requests import EndedRequests, Ending, Load, PartialResponses
from rljob_worker.engines.rollout.transformers.cached_rows import CachedPrefix, CachedRow, CachedRows
from rljob_worker.engines.rollout.transformers.kv_cache import Survivors
from rljob_worker.engines.rollout.transformers.model_steps import ModelSteps
from rljob_worker.engines.rollout.transformers.request import (
    NO_ROUTES,
    DecodingRequest,
    ended,
    keep_prompt_routes,
    keep_rope_shifts,
    partial_responses,
    sequences_of,
)
from rljob_worker.engines.rollout.transformers.room import (
    first_columns,
    least_columns,
    next_columns,
    rows_with_room,
)
from rljob_worker.engines.rollout.transformers.rows import DecodingRows
from rljob_worker.engines.rollout.transformers.static_steps import StaticSteps
from rljob_worker.engines.rollout.transformers.waiting import WaitingRequests
from rljob_worker.engines.router import Routing

_HELD_SHARE = 4
"""Rows may hold one in this many tokens of the cache's room between their turns."""
_SHRINK_SHARE = 16
"""Finished rows leave once they are one in this many: moving rows costs less than a step over them."""


class Decoding:
    """Requests that wait, rows that decode, and those that ended and were not taken yet."""

    def __init__(
        self,
        model: torch.nn.Module,
        end_token_ids: tuple[int, ...],
        routing: Routing | None = None,
        static_steps: StaticSteps | None = None,
        reader: PictureReader | None = None,
    ) -> None:
        """routing, static_steps: as in `ModelSteps`. reader: of the pictures that prompts show, of a model that
        sees."""
        self._steps = ModelSteps(model, routing, static_steps)
        self._routing, self._reader = routing, reader
        self._no_routes = NO_ROUTES if routing is None else routing.none
        self._device: torch.device = next(model.parameters()).device
        self.room = 0
        """Tokens that the cache may have, rows x columns; read when rows come, and when their columns are full."""
        self._waiting = WaitingRequests()
        self._paused: dict[int, DecodingRequest] = {}
        """By row id."""
        self._rows = DecodingRows(end_token_ids, self._no_routes)
        self._tokens = torch.empty(0, dtype=torch.int64, device=self._device)
        """[rows] the last token of each, which the next step computes."""
        self._ended: list[tuple[DecodingRequest, Ending]] = []
        self._cache = self._steps.new_cache()
        self._given: dict[int, DecodingRequest] = {}
        """By row id: what `take_ended` gave last."""
        self._held = CachedRows()

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not len(self._waiting) and len(self._rows) == self._rows.num_finished

    @property
    def num_ended(self) -> int:
        """Requests that `take_ended` would give."""
        return len(self._ended)

    @property
    def cache_bytes(self) -> int:
        """What the cache has reserved, and what is held besides it."""
        return self._cache.nbytes + self._held.nbytes

    @property
    def load(self) -> Load:
        running = len(self._rows) - self._rows.num_finished
        return Load(
            running=running,
            waiting=len(self._waiting),
            paused=len(self._paused),
            free_tokens=max(0, self._room_left - running * self._cache.columns),
        )

    @property
    def given(self) -> dict[int, int]:
        """Tokens of each row that `take_ended` gave last, by row id."""
        return {row_id: request.num_tokens for row_id, request in self._given.items()}

    @property
    def most_held(self) -> int:
        """Tokens that rows may hold between their turns."""
        return self.room // _HELD_SHARE

    @property
    def unfinished(self) -> set[int]:
        """Row ids of requests that wait, run, or are paused."""
        return {*self._rows.running, *(request.row_id for request in self._waiting), *self._paused}

    @property
    def row_ids(self) -> set[int]:
        """Rows of requests that were not given back: those that have not ended, and those that have."""
        return self.unfinished | {request.row_id for request, _ in self._ended}

    def submit(self, requests: Sequence[DecodingRequest]) -> None:
        """Each of at most `room` tokens."""
        self._waiting.append(requests)
        self._let_go()

    def take_ended(self) -> EndedRequests:
        result, self._ended = self._ended, []
        self._given = {request.row_id: request for request, _ in result}
        return ended(result, self._no_routes)

    def peek(self, row_ids: Indices) -> PartialResponses:
        """The responses so far of requests that have not ended, in this order."""
        rows = set(row_ids.tolist())
        decoded = [self._rows.request(row) for row in self._rows.having(rows)]
        others = [request for request in (*self._waiting, *self._paused.values()) if request.row_id in rows]
        result = {request.row_id: request for request in (*decoded, *others)}
        return partial_responses([result[row] for row in row_ids.tolist()], self._no_routes)

    def abort(self, row_ids: Indices) -> None:
        """End requests as they are."""
        self._ended += [(request, Ending.ABORTED) for request in self._taken_out(set(row_ids.tolist()))]

    def pause(self, row_ids: Indices) -> None:
        """Keep requests that wait and run, as they are, out of both."""
        self._paused |= {
            request.row_id: request for request in self._taken_out(set(row_ids.tolist()) - set(self._paused))
        }

    def resume(self, row_ids: Indices) -> None:
        """Let those of the requests that are paused wait before all others."""
        self._waiting.prepend([self._paused.pop(row) for row in row_ids.tolist() if row in self._paused])

    def _taken_out(self, row_ids: set[int]) -> list[DecodingRequest]:
        """Requests of these rows that have not ended, wherever they are: they are there no longer."""
        result = self._waiting.take(row_ids)
        result += [self._paused.pop(row) for row in row_ids & set(self._paused)]
        if rows := self._rows.having(row_ids):
            result += [self._rows.request(row) for row in rows]
            self._leave_out(np.isin(np.arange(len(self._rows)), rows))
        return result

    def hold(self, row_ids: Indices) -> None:
        """Keep what was computed of rows that ended in the last step, for their next turns. Where routes are recorded
        nothing is: those of a whole prompt are asked for."""
        given = {row: self._given[row] for row in row_ids.tolist()}
        for row in np.flatnonzero(self._rows.finished).tolist() if self._routing is None else ():
            request = self._rows.request(row)
            if request.is_that_of(given.get(request.row_id)):
                tokens = request.sequence()[:-1]
                layers, digests = self._cache.copy_of(row, len(tokens)), picture_digests(request.pictures)
                self._held.keep(request.row_id, CachedRow(tokens, layers, digests))
        for row_id in row_ids.tolist():
            self._held.touch(row_id)
        self._let_go()
        if self._cache.rows * self._cache.columns > self._room_left:
            self._leave_out(self._rows.finished)
            if len(self._rows):
                self._cache.resize(len(self._rows), self._cache.columns)
            else:
                self.drop_cache()
            self._held.shrink(self.room - self._cache.rows * self._cache.columns)

    def release(self, row_ids: Iterable[int] | None = None) -> None:
        """Hold these rows no longer; None: any."""
        if row_ids is None:
            self._held = CachedRows()
        else:
            self._held.release(row_ids)

    def put_back(self) -> None:
        """What is computed of rows holds no more: they
        wait again, with the tokens they have, before all others."""
        self._wait_again(np.flatnonzero(~self._rows.finished))
        self._clear_rows()

    def drop_cache(self) -> None:
        """Give its memory back; no rows may be decoding."""
        assert len(self._rows) == self._rows.num_finished, "rows that decode need what was computed for them"
        self._clear_rows()
        self._cache = self._steps.new_cache()

    def advance(self, version: int) -> None:
        """Admit rows if they are worth it; one more token for every row otherwise. version: of the policy. An error
        leaves every request with the tokens that it had: rows wait again. Rows that end stay until the next call."""
        self._retire()
        try:
            if new := self._worth_admitting():
                self._admit(new, version)
            else:
                self._step(version)
        except Exception:
            self.put_back()
            raise

    # ---- rows come

    def _worth_admitting(self) -> int:
        """How many of those that wait to admit now: all that there is room for, once it is a quarter of all room."""
        if not len(self._waiting):
            return 0
        row_limit = self._row_limit(self._columns_with_new())
        room = row_limit - len(self._rows)
        return room if room >= min(len(self._waiting), max(1, row_limit // 4)) else 0

    @property
    def _room_left(self) -> int:
        """Tokens that the cache may have besides what rows hold."""
        return self.room - self._held.num_tokens

    def _let_go(self) -> None:
        """Evict the longest unused of what rows hold, until it is within its limit and there is room for a row."""
        if not self._held.num_tokens:
            return
        requests = [*self._waiting, *self._paused.values(), *self._rows.unfinished]
        longest = max((request.longest for request in requests), default=0)
        self._held.shrink(min(self.most_held, self.room - longest))

    def _row_limit(self, columns: int) -> int:
        """Rows that may decode at once, with n columns."""
        return rows_with_room(len(self._rows) + len(self._waiting), self._room_left, columns)

    def _columns_with_new(self) -> int:
        """Columns that are needed once rows are admitted."""
        if not len(self._rows):
            return min(first_columns(self._waiting.longest, self._waiting.most_remaining), self._room_left)
        return max(self._cache.columns, self._waiting.longest + 1)

    def _admit(self, num_rows: int, version: int) -> None:
        """Prefill the first requests that wait, and draw the next token of each."""
        self._make_room(num_rows)
        new = self._waiting.first(num_rows)
        sequences, sequence_of = sequences_of(new)
        firsts = [new[at] for at in np.searchsorted(sequence_of, np.arange(sequences.num_rows)).tolist()]
        begun = self._beginnings(new, sequences, firsts)
        num_new = sequences.lengths - np.array([item.num_tokens for item in begun], np.int64)
        for chunk in micro_batches(num_new, PREFILL_TOKENS):
            first, last = np.searchsorted(sequence_of, (chunk[0], chunk[-1] + 1)).tolist()
            packed, of = sequences.take(chunk), sequence_of[first:last] - chunk[0]
            known, shown = [begun[at] for at in chunk.tolist()], self._shown([firsts[at] for at in chunk.tolist()])
            logits, routes = self._steps.prefill(self._cache, packed, of, known, shown)
            before = len(self._rows)
            keep_prompt_routes(new[first:last], routes, packed, of)
            keep_rope_shifts(new[first:last], shown, of)
            self._rows.append(new[first:last])
            self._waiting.pop(last - first)
            assert packed.offsets is not None
            last_of = packed.offsets[1:][of] - 1
            self._draw(before, logits, version, routes[last_of] if len(routes) else routes)

    def _beginnings(
        self, requests: Sequence[DecodingRequest], sequences: Column, firsts: Sequence[DecodingRequest]
    ) -> Sequence[CachedPrefix]:
        """The cached beginning of each sequence, from what the row of its first request holds until now."""
        held = {request.row_id: self._held.take(request.row_id) for request in requests}
        return [
            CachedPrefix.of(held[request.row_id], sequences.row(place), picture_digests(request.pictures))
            for place, request in enumerate(firsts)
        ]

    def _shown(self, requests: Sequence[DecodingRequest]) -> list[ShownTokens] | None:
        """What the prompts of requests show; None of a model that does not see."""
        if self._reader is None:
            return None
        return [self._reader.prompt_pictures(item.prompt, item.pictures, item.row_id) for item in requests]

    def _make_room(self, num_rows: int) -> None:
        """Memory for n more rows, and for those that will follow them."""
        cache, columns = self._cache, self._columns_with_new()
        if not len(self._rows):
            if cache.rows * cache.columns > self._room_left:
                self.drop_cache()
            self._cache.restart(self._row_limit(columns), self._waiting.longest, columns)
            return
        if len(self._rows) + num_rows > cache.rows or columns > cache.columns:
            cache.resize(self._row_limit(columns), columns)
        if self._waiting.longest > cache.column:
            cache.shift(cache.column - self._waiting.longest)

    # ---- one more token

    def _step(self, version: int) -> None:
        if self._cache.is_full:
            self._make_column()
        shifts = 0 if self._reader is None else self._rows.rope_shifts
        logits, routes = self._steps.next_logits(self._cache, self._tokens, self._rows.finished, shifts)
        self._cache.advance()
        self._draw(0, logits, version, routes)

    def _make_column(self) -> None:
        """A column for the next token: where others are free, theirs; else of more memory. Rows for which there is
        not enough wait again, those with the fewest tokens first: they are computed anew the soonest."""
        cache, remaining = self._cache, self._rows.remaining
        if cache.first * 4 >= cache.columns:
            cache.shift(cache.first)
            return
        num_stay = rows_with_room(
            len(self._rows), self._room_left, least_columns(cache.column - cache.first, remaining)
        )
        if num_stay < len(self._rows):
            preempted = np.sort(np.argsort(-cache.lengths, kind="stable")[num_stay:])
            self._wait_again(preempted)
            self._leave_out(np.isin(np.arange(len(self._rows)), preempted))
        columns = next_columns(cache.columns, cache.column, remaining)
        if len(self._rows) * columns > self._room_left:
            cache.shift(cache.first)
            columns = min(columns, self._room_left // len(self._rows))
        cache.resize(self._row_limit(columns) if len(self._waiting) else len(self._rows), columns)

    def _draw(self, first: int, logits: torch.Tensor, version: int, routes: np.ndarray) -> None:
        """The next token of all rows from `first` on."""
        tokens, over = self._rows.draw(first, logits, version, routes)
        self._tokens = torch.cat([self._tokens, tokens]) if first else tokens
        self._end(over)

    # ---- rows go

    def _end(self, rows: Iterable[int]) -> None:
        self._ended += [(self._rows.request(row), self._rows.ending(row)) for row in rows]

    def _wait_again(self, rows: Indices) -> None:
        """Put the requests of these rows, with the tokens they have, before all others that wait."""
        self._waiting.prepend([self._rows.request(row) for row in rows.tolist()])

    def _retire(self) -> None:
        """Drop finished rows: at once where others want their place, otherwise once they are worth the move."""
        num_finished = self._rows.num_finished
        is_wanted = len(self._waiting) > 0 or self._cache.is_full
        if num_finished and (is_wanted or num_finished * _SHRINK_SHARE >= len(self._rows)):
            self._leave_out(self._rows.finished)

    def _leave_out(self, dropped: np.ndarray) -> None:
        """Go on without the rows that are leaving, bool [rows]."""
        if dropped.all():
            self._clear_rows()
            return
        survivors = Survivors.of(dropped)
        order = survivors.order()
        self._cache.keep(survivors)
        self._rows.keep(order)
        self._tokens = self._tokens[torch.from_numpy(order).to(self._device)]

    def _clear_rows(self) -> None:
        self._rows.clear()
        self._tokens = self._tokens[:0]
