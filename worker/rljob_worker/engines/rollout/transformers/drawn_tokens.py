"""The tokens that decoding rows have, in tables that grow with the longest of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rljob_worker.batch import Indices
from rljob_worker.engines.rollout.transformers.request import NO_ROUTES, Drawn

_FIRST_TOKENS = 256
"""Tokens per row that there is room for at first; the number doubles."""


class DrawnTokens:
    """Rows of tokens, log-probs, versions and routes, of which the first `counts` are there."""

    def __init__(self, no_routes: np.ndarray = NO_ROUTES) -> None:
        """no_routes: of no tokens, as they are recorded."""
        self.counts: Indices = np.empty(0, np.int64)
        """[rows]."""
        self._longest = 0
        """At least the largest count."""
        self._tokens = np.empty((0, _FIRST_TOKENS), np.int32)
        self._log_probs = np.empty((0, _FIRST_TOKENS), np.float32)
        self._versions = np.empty((0, _FIRST_TOKENS), np.int32)
        self._routes = np.empty((0, _FIRST_TOKENS, *no_routes.shape[1:]), no_routes.dtype)

    def __len__(self) -> int:
        return len(self.counts)

    def append(self, rows: Sequence[Drawn]) -> None:
        """More rows, with what they have."""
        first = len(self)
        self.counts = np.concatenate([self.counts, [len(row) for row in rows]])
        self._longest = int(self.counts.max(initial=0))
        self._make_room(self._longest)
        for at, row in enumerate(rows, first):
            if length := len(row):
                self._tokens[at, :length] = row.tokens
                self._log_probs[at, :length] = row.log_probs
                self._versions[at, :length] = row.versions
                self._routes[at, :length] = row.routes

    def add(
        self, rows: Indices, tokens: np.ndarray, log_probs: np.ndarray, version: int, routes: np.ndarray = NO_ROUTES
    ) -> None:
        """One more token for each of these rows; routes: [rows, layers, k], where they are recorded."""
        at = self.counts[rows]
        self._longest += 1
        self._make_room(self._longest)
        self._tokens[rows, at] = tokens
        self._log_probs[rows, at] = log_probs
        self._versions[rows, at] = version
        if self._routes.shape[2]:
            self._routes[rows, at] = routes
        self.counts[rows] = at + 1

    def keep(self, order: Indices) -> None:
        """Row i is the former row `order[i]`: itself, or one from behind those that stay."""
        moved = np.flatnonzero(order != np.arange(len(order)))
        if len(moved):
            longest = int(self.counts[order[moved]].max())
            for table in self._tables:
                table[moved, :longest] = table[order[moved], :longest]
        self.counts = self.counts[order]
        self._longest = int(self.counts.max(initial=0))

    def tokens(self, row: int) -> np.ndarray:
        """Those of one row, where they lie."""
        return self._tokens[row, : self.counts[row]]

    def of(self, row: int) -> Drawn:
        """What a row has, in new memory."""
        mine = slice(int(self.counts[row]))
        return Drawn(*(table[row, mine].copy() for table in self._tables))

    @property
    def _tables(self) -> tuple[np.ndarray, ...]:
        """In the order of `Drawn`."""
        return self._tokens, self._log_probs, self._versions, self._routes

    def _make_room(self, num_tokens: int) -> None:
        rows, columns = self._tokens.shape
        if len(self) <= rows and num_tokens <= columns:
            return
        shape = (max(len(self), rows), columns if num_tokens <= columns else max(num_tokens, 2 * columns))
        self._tokens = _grown(self._tokens, shape)
        self._log_probs = _grown(self._log_probs, shape)
        self._versions = _grown(self._versions, shape)
        self._routes = _grown(self._routes, shape)


def _grown(table: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    grown = np.empty((*shape, *table.shape[2:]), table.dtype)
    grown[: table.shape[0], : table.shape[1]] = table
    return grown
