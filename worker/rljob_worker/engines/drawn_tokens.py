"""Tokens in the order they were drawn, step by step over changing sets of rows, and the responses they make."""

from __future__ import annotations

import numpy as np
import torch

from rljob_worker.batch import Column, Indices
from rljob_worker.engines.protocols import Responses
from rljob_worker.gather import offsets_of


class DrawnTokens:
    """Collects draws; a row may draw on after its end, which is cut off."""

    def __init__(self, end_token_ids: tuple[int, ...], max_tokens: int) -> None:
        self._ends = np.array(end_token_ids, np.int64)
        self._max_tokens = max_tokens
        self._rows: list[Indices] = []
        self._tokens: list[Indices] = []
        self._log_probs: list[torch.Tensor] = []

    def add(self, rows: Indices, tokens: torch.Tensor, log_probs: torch.Tensor) -> np.ndarray:
        """One more token for each of `rows`; returns bool [rows], whether it is an end token."""
        self._rows.append(rows)
        self._tokens.append(tokens.cpu().numpy())
        self._log_probs.append(log_probs)
        return self._is_end(self._tokens[-1])

    def responses(self, num_rows: int) -> Responses:
        """Responses in row order, each up to and with its first end token, or `max_tokens`."""
        if not self._rows:
            empty = np.zeros(num_rows, np.int64)
            nothing = Column.from_lengths(np.empty(0, np.float32), empty)
            return Responses(Column.from_lengths(np.empty(0, np.int64), empty), nothing, np.zeros(num_rows, bool))
        rows = np.concatenate(self._rows)
        order = np.argsort(rows, kind="stable")  # stable: the draws of a row stay in time
        rows = rows[order]
        tokens = np.concatenate(self._tokens)[order]
        log_probs = torch.cat(self._log_probs).float().cpu().numpy()[order]
        counts = np.bincount(rows, minlength=num_rows)
        positions = np.arange(len(rows)) - offsets_of(counts)[rows]
        lengths = np.minimum(counts, self._max_tokens)
        ends = np.flatnonzero(self._is_end(tokens) & (positions < lengths[rows]))
        ended, first = np.unique(rows[ends], return_index=True)
        lengths[ended] = positions[ends[first]] + 1
        truncated = np.ones(num_rows, bool)
        truncated[ended] = False
        kept = positions < lengths[rows]
        return Responses(
            Column.from_lengths(tokens[kept], lengths), Column.from_lengths(log_probs[kept], lengths), truncated
        )

    def _is_end(self, tokens: Indices) -> np.ndarray:
        if len(self._ends) == 1:
            return tokens == self._ends[0]
        return (tokens[:, None] == self._ends).any(axis=1)
