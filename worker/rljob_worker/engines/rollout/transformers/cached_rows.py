"""The prefix cache: keys and values of rows between their turns, and prompts that begin with those of a row. New
weights invalidate it (`TransformersRollout.load_weights`).

turn 0   prompt p p p, response a b       held: p p p a, since nothing was computed of the last token
turn 1   prompt p p p a b c c             computed: b c c
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rljob_worker.batch import Indices
from rljob_worker.engines.attention.varlen import Formula, causal_attention
from rljob_worker.engines.rollout.transformers.kv_cache import PromptCapture


@dataclass(frozen=True, slots=True, eq=False)
class CachedRow:
    """One row, as far as it was computed."""

    tokens: Indices
    """[tokens]."""
    layers: Mapping[int, tuple[torch.Tensor, torch.Tensor]]
    """Keys and values of each layer, [heads, tokens, head_dim]."""
    pictures: tuple[bytes, ...] = ()
    """Digests of what its tokens show."""

    @property
    def nbytes(self) -> int:
        return sum(item.nbytes for pair in self.layers.values() for item in pair)

    def num_shared(self, sequence: Indices, pictures: Sequence[bytes] = ()) -> int:
        """How many tokens this row and a sequence begin with alike; one of the sequence is left to compute. None where
        the sequence does not show first what the row shows: its tokens say nothing of that."""
        if tuple(pictures[: len(self.pictures)]) != self.pictures:
            return 0
        most = min(len(self.tokens), len(sequence) - 1)
        differ = np.flatnonzero(self.tokens[:most] != sequence[:most])
        return int(differ[0]) if len(differ) else most


class CachedRows:
    """By row id, the longest unused first."""

    def __init__(self) -> None:
        self._rows: dict[int, CachedRow] = {}
        self.num_tokens = 0

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self._rows.values())

    def keep(self, row_id: int, row: CachedRow) -> None:
        """In place of what there is of the row."""
        self.take(row_id)
        self._rows[row_id] = row
        self.num_tokens += len(row.tokens)

    def touch(self, row_id: int) -> None:
        """The row, if it is here, was used now."""
        if row_id in self._rows:
            self._rows[row_id] = self._rows.pop(row_id)

    def take(self, row_id: int) -> CachedRow | None:
        """A row, which is then here no longer."""
        row = self._rows.pop(row_id, None)
        self.num_tokens -= 0 if row is None else len(row.tokens)
        return row

    def shrink(self, num_tokens: int) -> None:
        """Drop the longest unused until there are no more tokens than these."""
        while self.num_tokens > max(0, num_tokens):
            self.take(next(iter(self._rows)))

    def release(self, row_ids: Iterable[int]) -> None:
        for row_id in row_ids:
            self.take(row_id)


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """What is known of a sequence: its first tokens are those of a row."""

    row: CachedRow | None = None
    num_tokens: int = 0

    @staticmethod
    def of(row: CachedRow | None, sequence: Indices, pictures: Sequence[bytes] = ()) -> CachedPrefix:
        """pictures: digests of what the sequence shows."""
        num_shared = 0 if row is None else row.num_shared(sequence, pictures)
        return CachedPrefix(row, num_shared) if num_shared else CachedPrefix()


class ContinuedPrompts(PromptCapture):
    """In the place of a cache and of an attention layout, in a forward of what is new of packed sequences: captures
    whole sequences, and lets each new token attend to all of its own before it."""

    def __init__(self, beginnings: Sequence[CachedPrefix], num_new: Indices) -> None:
        """num_new: [sequences] tokens of each after its beginning."""
        super().__init__()
        self._beginnings, self._num_new = beginnings, num_new.tolist()
        self._lengths = [item.num_tokens + new for item, new in zip(beginnings, self._num_new, strict=True)]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[1, heads, tokens, head_dim] of what is new; returns those of whole sequences."""
        keys, values = (self._whole(item, layer_idx, part) for part, item in enumerate((key_states, value_states)))
        return super().update(keys, values, layer_idx)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, formula: Formula) -> torch.Tensor:
        queries = query.split(self._num_new, 2)
        parts = zip(queries, key.split(self._lengths, 2), value.split(self._lengths, 2), strict=True)
        return torch.cat([causal_attention(*part, formula).transpose(1, 2) for part in parts], dim=1)

    def _whole(self, states: torch.Tensor, layer: int, part: int) -> torch.Tensor:
        """part: 0 of keys, 1 of values."""
        pieces = []
        for beginning, new in zip(self._beginnings, states.split(self._num_new, 2), strict=True):
            if beginning.row is not None:
                pieces.append(beginning.row.layers[layer][part][None, :, : beginning.num_tokens])
            pieces.append(new)
        return torch.cat(pieces, dim=2)
