"""`TransformersRollout`: sampling with nothing but transformers, as fast as its modules allow.

Each distinct prompt is prefilled once, packed; its keys are copied to the rows of its group. Rows decode together; a
row that ends makes room for the next one waiting (continuous batching), or the batch shrinks.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from rljob_worker.batch import Column, Indices
from rljob_worker.engines.arriving_policy import copy_policy
from rljob_worker.engines.drawn_tokens import DrawnTokens
from rljob_worker.engines.kv_cache import DecodeCache, PromptCapture, Survivors
from rljob_worker.engines.packing import micro_batches
from rljob_worker.engines.protocols import Responses, Sampling
from rljob_worker.engines.sampling import sample
from rljob_worker.engines.varlen_attention import PackedLayout

_PREFILL_TOKENS = 16384
_SHRINK_SHARE = 16
"""Finished rows leave once they are one in this many: moving rows costs less than a step over them."""


class TransformersRollout:
    """A RolloutEngine (see `protocols`) over a causal LM that `models.load_policy` made."""

    def __init__(
        self,
        model: torch.nn.Module,
        device: torch.device,
        end_token_ids: tuple[int, ...],
        max_batch_rows: int | None = None,
    ) -> None:
        self.model = model.eval().to(device)
        self.device = device
        self.max_batch_rows = max_batch_rows
        self.version = 0
        self._end_token_ids = end_token_ids
        self._cache: DecodeCache | None = None
        self._is_whole = True

    def generate(
        self, prompts: list[np.ndarray], sampling: Sampling, row_ids: np.ndarray, group_size: int
    ) -> Responses:
        assert len(row_ids) == len(prompts) * group_size, "one row_id per response"
        assert self._is_whole, f"the policy after version {self.version} has not come whole"
        drawn = DrawnTokens(self._end_token_ids, sampling.max_tokens)
        if len(row_ids):
            longest = max(map(len, prompts))
            cache = self._room_for(len(row_ids), longest, sampling.max_tokens)
            with torch.inference_mode():
                decoding = _Decoding(self.model, cache, drawn, sampling, longest)
                decoding.run(Column.ragged(prompts), np.asarray(row_ids, np.int64), group_size)
        return drawn.responses(len(row_ids))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        self._is_whole = False
        copy_policy(dict(self.model.named_parameters(remove_duplicate=False)), weights, version)
        self.version, self._is_whole = version, True

    def sleep(self) -> None:
        self._cache = None

    def wake(self) -> None:
        """Nothing to do: the next `generate` reserves what it needs."""

    def _room_for(self, num_rows: int, longest_prompt: int, max_tokens: int) -> DecodeCache:
        """The cache, with the memory of the call before where that is enough."""
        rows = min(num_rows, self.max_batch_rows or num_rows)
        columns = longest_prompt + max_tokens
        if rows < num_rows:  # waves of rows overlap in time: slack between two shifts
            columns += max(64, columns // 4)
        self._cache = self._cache or DecodeCache()
        self._cache.open(rows, columns)
        return self._cache


class _Decoding:
    """One call of `generate`: admit, step and retire rows until none is left.

    rows: which response each row of the cache makes. counts: how many tokens it has. tokens: its last one.
    """

    def __init__(
        self, model: torch.nn.Module, cache: DecodeCache, drawn: DrawnTokens, sampling: Sampling, longest_prompt: int
    ) -> None:
        self.model, self.cache, self.drawn, self.sampling = model, cache, drawn, sampling
        self.longest_prompt = longest_prompt
        self.device = model.device
        self._clear()

    def run(self, prompts: Column, row_ids: Indices, group_size: int) -> None:
        self.prompts, self.row_ids, self.group_size = prompts, row_ids, group_size
        waiting = np.arange(len(row_ids))
        while len(waiting) or len(self.rows):
            room = self.cache.row_limit - len(self.rows)
            if len(waiting) and room >= min(len(waiting), max(1, self.cache.row_limit // 4)):
                self.admit(waiting[:room])
                waiting = waiting[room:]
            else:
                self.cache.reserve(self.cache.row_limit if len(waiting) else len(self.rows))
                self.step()
            self.retire(eager=len(waiting) > 0 or self.cache.is_full)

    def admit(self, new: Indices) -> None:
        """Prefill the prompts of `new` rows and draw their first tokens."""
        if not len(self.rows):
            self.cache.restart(self.longest_prompt)
        groups, prompt_of_row = np.unique(new // self.group_size, return_inverse=True)
        lengths = self.prompts.lengths[groups]
        for chunk in micro_batches(lengths, _PREFILL_TOKENS):
            mine = (prompt_of_row >= chunk[0]) & (prompt_of_row <= chunk[-1])
            of_row = prompt_of_row[mine] - chunk[0]
            logits = self._prefill(self.prompts.take(groups[chunk]), of_row)
            self._draw(new[mine], np.zeros(len(of_row), np.int64), logits)

    def step(self) -> None:
        """One more token for every row."""
        cache = self.cache
        if cache.is_full:
            cache.shift(self.longest_prompt)
        positions = torch.from_numpy(cache.lengths).to(self.device)
        out = self.model(
            input_ids=self.tokens[:, None],
            position_ids=positions[:, None],
            past_key_values=cache,
            use_cache=True,
            attention_layout=cache,
        )
        cache.advance()
        rows, counts, finished = self.rows, self.counts, self.finished
        self._clear()
        self._draw(rows, counts, out.logits[:, -1])
        self.finished |= finished  # those that ended before and have not left

    def retire(self, *, eager: bool) -> None:
        """Drop finished rows: all at the end, otherwise once they are worth the move."""
        num_finished = int(self.finished.sum())
        if num_finished == len(self.rows):
            self._clear()
        elif num_finished and (eager or num_finished * _SHRINK_SHARE >= len(self.rows)):
            survivors = Survivors.of(self.finished)
            order = survivors.order()
            self.cache.keep(survivors)
            self.rows, self.counts, self.finished = self.rows[order], self.counts[order], self.finished[order]
            self.tokens = self.tokens[torch.from_numpy(order).to(self.device)]

    def _prefill(self, prompts: Column, prompt_of_row: Indices) -> torch.Tensor:
        """Forward packed prompts, add a row of the cache for each of `prompt_of_row`; its next-token logits [rows,
        vocabulary]."""
        assert prompts.offsets is not None
        lengths, starts = prompts.lengths, prompts.offsets[:-1]
        tokens = np.arange(len(prompts.values))
        captured = PromptCapture()
        out = self.model(
            input_ids=torch.from_numpy(prompts.values).to(self.device)[None],
            position_ids=torch.from_numpy(tokens - np.repeat(starts, lengths)).to(self.device)[None],
            past_key_values=captured,
            use_cache=True,
            logits_to_keep=torch.from_numpy(starts + lengths - 1).to(self.device),
            attention_layout=PackedLayout.build(tokens, lengths, len(tokens), self.device),
        )
        self.cache.admit(captured, prompt_of_row, starts, lengths)
        return out.logits[0].index_select(0, torch.from_numpy(prompt_of_row).to(self.device))

    def _draw(self, rows: Indices, counts: Indices, logits: torch.Tensor) -> None:
        """Sample the next token of `rows`, which have `counts` so far, and append them to the batch."""
        tokens, log_probs = sample(logits, self.sampling, self.row_ids[rows], counts)
        finished = self.drawn.add(rows, tokens, log_probs) | (counts + 1 >= self.sampling.max_tokens)
        self.tokens = torch.cat([self.tokens, tokens]) if len(self.rows) else tokens
        self.rows = np.concatenate([self.rows, rows])
        self.counts = np.concatenate([self.counts, counts + 1])
        self.finished = np.concatenate([self.finished, finished])

    def _clear(self) -> None:
        self.rows = self.counts = np.empty(0, np.int64)
        self.finished = np.empty(0, bool)
        self.tokens = torch.empty(0, dtype=torch.int64, device=self.device)
