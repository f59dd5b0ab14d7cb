"""Admit, step and retire: continuous batching over one cache.

Each distinct prompt is prefilled once, packed; its keys are copied to the rows of its group. Rows decode together; a
row that ends makes room for the next one waiting, or the batch shrinks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from rljob_worker.batch import Column, Indices
from rljob_worker.engines.packing import micro_batches
from rljob_worker.engines.rollout.requests import Ending
from rljob_worker.engines.rollout.transformers.kv_cache import DecodeCache, PromptCapture, Survivors
from rljob_worker.engines.rollout.transformers.request import Request, sequences_of
from rljob_worker.engines.rollout.transformers.rows import DecodingRows
from rljob_worker.engines.varlen_attention import PackedLayout

_PREFILL_TOKENS = 16384
_SHRINK_SHARE = 16
"""Finished rows leave once they are one in this many: moving rows costs less than a step over them."""


class Decoding:
    """Requests that wait, rows that decode, and those that ended and were not taken yet."""

    def __init__(self, model: torch.nn.Module, end_token_ids: tuple[int, ...], max_rows: int | None) -> None:
        self._model, self._max_rows = model, max_rows
        self._device: torch.device = next(model.parameters()).device
        self._waiting: deque[Request] = deque()
        self._rows = DecodingRows(end_token_ids)
        self._tokens = torch.empty(0, dtype=torch.int64, device=self._device)
        """[rows] the last token of each, which the next step computes."""
        self._ended: list[tuple[Request, Ending]] = []
        self._cache = DecodeCache()

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not len(self._rows)

    def submit(self, requests: Iterable[Request]) -> None:
        self._waiting.extend(requests)

    def take_ended(self) -> list[tuple[Request, Ending]]:
        ended, self._ended = self._ended, []
        return ended

    def abort(self, row_ids: Indices) -> None:
        """End requests as they are."""
        rows = set(row_ids.tolist())
        self._ended += [(request, Ending.ABORTED) for request in self._waiting if request.row_id in rows]
        self._waiting = deque(request for request in self._waiting if request.row_id not in rows)
        self._end(self._rows.abort(row_ids))
        self._retire()

    def put_back(self) -> None:
        """What is computed holds no more: rows wait again, with the tokens they have, before all others."""
        going = np.flatnonzero(~self._rows.finished).tolist()
        self._waiting.extendleft(self._rows.request(row) for row in reversed(going))
        self._clear_rows()

    def drop_cache(self) -> None:
        """Give its memory back; no rows may be decoding."""
        assert not len(self._rows), "rows that decode need what was computed for them"
        self._cache = DecodeCache()

    def advance(self, version: int) -> None:
        """Admit rows if they are worth it; one more token for every row otherwise. version: of the policy."""
        new = self._worth_admitting()
        if new:
            self._admit(new, version)
        else:
            self._step(version)
        self._retire()

    # ---- rows come

    def _worth_admitting(self) -> int:
        """How many of those that wait to admit now: all that there is room for, once it is a quarter of all room."""
        row_limit = self._row_limit
        room = row_limit - len(self._rows)
        return room if self._waiting and room >= min(len(self._waiting), max(1, row_limit // 4)) else 0

    @property
    def _row_limit(self) -> int:
        return min(len(self._rows) + len(self._waiting), self._max_rows or len(self._rows) + len(self._waiting))

    def _admit(self, num_rows: int, version: int) -> None:
        """Prefill the first requests that wait, and draw the next token of each."""
        new = [self._waiting[at] for at in range(min(num_rows, len(self._waiting)))]
        self._make_room_for(new)
        for _ in new:
            self._waiting.popleft()
        sequences, sequence_of = sequences_of(new)
        for chunk in micro_batches(sequences.lengths, _PREFILL_TOKENS):
            first, last = np.searchsorted(sequence_of, (chunk[0], chunk[-1] + 1)).tolist()
            logits = self._prefill(sequences.take(chunk), sequence_of[first:last] - chunk[0])
            before = len(self._rows)
            self._rows.append(new[first:last])
            self._draw(before, logits, version)

    def _make_room_for(self, new: Sequence[Request]) -> None:
        if not len(self._rows):
            longest = max(request.num_tokens for request in self._waiting)
            remaining = max(request.remaining for request in self._waiting)
            self._cache.restart(self._row_limit, longest, longest + remaining)
            return
        longest = max(request.num_tokens for request in new)
        if longest > self._cache.column:
            self._cache.shift(self._cache.column - longest)
        self._cache.reserve(len(self._rows) + len(new), longest)

    def _prefill(self, sequences: Column, sequence_of: Indices) -> torch.Tensor:
        """Forward packed sequences, add a row of the cache for each of `sequence_of`; its next-token logits [rows,
        vocabulary]."""
        assert sequences.offsets is not None
        lengths, starts = sequences.lengths, sequences.offsets[:-1]
        tokens = np.arange(len(sequences.values))
        captured = PromptCapture()
        out = self._model(
            input_ids=torch.from_numpy(sequences.values).to(self._device)[None],
            position_ids=torch.from_numpy(tokens - np.repeat(starts, lengths)).to(self._device)[None],
            past_key_values=captured,
            use_cache=True,
            logits_to_keep=torch.from_numpy(starts + lengths - 1).to(self._device),
            attention_layout=PackedLayout.build(tokens, lengths, len(tokens), self._device),
        )
        self._cache.admit(captured, sequence_of, starts, lengths)
        return out.logits[0].index_select(0, torch.from_numpy(sequence_of).to(self._device))

    # ---- one more token

    def _step(self, version: int) -> None:
        cache, finished = self._cache, self._rows.finished
        if cache.is_full:
            cache.make_column(self._row_limit if self._waiting else len(self._rows), self._rows.remaining)
        # a finished row goes nowhere: it must not run out of the model's positions
        positions = torch.from_numpy(np.where(finished, 0, cache.lengths)).to(self._device)
        out = self._model(
            input_ids=self._tokens[:, None],
            position_ids=positions[:, None],
            past_key_values=cache,
            use_cache=True,
            attention_layout=cache,
        )
        cache.advance()
        self._draw(0, out.logits[:, -1], version)

    def _draw(self, first: int, logits: torch.Tensor, version: int) -> None:
        """The next token of all rows from `first` on."""
        tokens, ended = self._rows.draw(first, logits, version)
        self._tokens = torch.cat([self._tokens, tokens]) if first else tokens
        self._end(ended)

    # ---- rows go

    def _end(self, rows: Iterable[int]) -> None:
        self._ended += [(self._rows.request(row), self._rows.ending(row)) for row in rows]

    def _retire(self) -> None:
        """Drop finished rows: at once where others want their place, otherwise once they are worth the move."""
        finished = self._rows.finished
        num_finished = int(finished.sum())
        is_wanted = len(self._waiting) > 0 or self._cache.is_full
        if num_finished == len(self._rows):
            self._clear_rows()
        elif num_finished and (is_wanted or num_finished * _SHRINK_SHARE >= len(self._rows)):
            survivors = Survivors.of(finished)
            order = survivors.order()
            self._cache.keep(survivors)
            self._rows.keep(order)
            self._tokens = self._tokens[torch.from_numpy(order).to(self._device)]

    def _clear_rows(self) -> None:
        self._rows.clear()
        self._tokens = self._tokens[:0]
