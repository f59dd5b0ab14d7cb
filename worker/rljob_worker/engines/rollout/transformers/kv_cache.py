"""Keys and values of the rows being decoded, aligned in time.

Every row writes its next token into the same column, whatever its length; a row's keys are the columns from its own
`start` up to that one. A prompt of 3 and one of 5 tokens, after two steps (. is masked):

    column   0 1 2 3 4 | 5 6
    row 0    . . p p p | a b        start 2
    row 1    p p p p p | a b        start 0

So a step's write is a slice, its mask is a slice of one that changes only when rows come or go, and a sliding window
is a narrower slice. Rows are always the first `num_rows` of the buffers: the last rows move into the places of
finished ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from transformers.cache_utils import Cache

from rljob_worker.batch import Indices
from rljob_worker.engines.attention.varlen import Formula, softmax

_ALIGNED_ELEMENTS = 8
"""Where CUDA's memory-efficient kernel reads a mask, it reads so many numbers at once, from an address that divides;
torch looks at the strides of a mask and not at where it begins."""


class PromptCapture(Cache):  # type: ignore[misc]
    """Stands in for a cache during the prefill: lets packed keys and values through and remembers them."""

    is_compileable = False

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.captured: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.captured[layer_idx] = (key_states, value_states)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Survivors:
    """Which rows of a batch go on, and how the last ones fill the gaps."""

    holes: Indices
    movers: Indices
    num_rows: int

    @staticmethod
    def of(finished: np.ndarray) -> Survivors:
        """From bool [rows]. finished = [0 1 0 1 0]: row 4 moves to place 1, three rows go on."""
        num_rows = int((~finished).sum())
        holes = np.flatnonzero(finished[:num_rows])
        movers = num_rows + np.flatnonzero(~finished[num_rows:])
        return Survivors(holes, movers, num_rows)

    def order(self) -> Indices:
        """The old place of each row that goes on: [0 4 2] in the example."""
        order = np.arange(self.num_rows)
        order[self.holes] = self.movers
        return order


class DecodeCache(Cache):  # type: ignore[misc]
    """A time-aligned cache, which is also the attention layout of a decoding step.

    Columns are reserved as they are needed (`Decoding`): most responses end long before the longest that is allowed.
    """

    is_compileable = False

    def __init__(self, *, zeroed: bool = False) -> None:
        """zeroed: memory is 0 before anything is written there, and not whatever was in it."""
        super().__init__(layers=[])
        self._zeroed = zeroed
        self.num_memories = self.num_arrangements = 0
        """How often its memory was made anew, and which columns rows have."""
        self.num_rows = 0
        self.column = 0
        """Where the next token is written."""
        self.starts = np.empty(0, np.int64)
        self._buffers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._views: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """The first `num_rows` rows of the buffers."""
        self._first_shape = (0, 0)
        """Rows and columns to reserve where nothing is reserved yet."""
        self._mask: torch.Tensor | None = None
        self._first = 0

    @property
    def is_full(self) -> bool:
        """Whether the next token has no column."""
        return self.column >= self.columns

    @property
    def rows(self) -> int:
        """Rows of the reserved memory."""
        return self._reserved(0)

    @property
    def columns(self) -> int:
        """Columns of the reserved memory."""
        return self._reserved(2)

    @property
    def first(self) -> int:
        """The first column that a row needs."""
        return self._first

    @property
    def buffers(self) -> Mapping[int, tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of each layer, [rows, heads, columns, head_dim]."""
        return self._buffers

    @property
    def nbytes(self) -> int:
        """Bytes of the reserved memory."""
        return sum(buffer.nbytes for pair in self._buffers.values() for buffer in pair)

    @property
    def lengths(self) -> Indices:
        """Tokens each row has in the cache; the position of its next one. [rows]"""
        return self.column - self.starts[: self.num_rows]

    def restart(self, rows: int, column: int, columns: int) -> None:
        """Forget all rows and write next at `column`, at least the length of every sequence to come. `rows` and
        `columns` are what to reserve; reserved memory that has so many rows, and that column, stays."""
        self.num_rows = self._first = 0
        self.column = column
        self._first_shape = (rows, columns)
        self.num_arrangements += 1
        if self.rows < rows or self.columns < column:
            self._buffers.clear()

    def admit(self, prompts: PromptCapture, prompt_of_row: Indices, starts: Indices, lengths: Indices) -> None:
        """Add one row per entry of `prompt_of_row`, with the keys of that packed prompt (at `starts`, of `lengths`)
        right-aligned before the current column."""
        rows = slice(self.num_rows, self.num_rows + len(prompt_of_row))
        width = int(lengths.max())
        first_before = self._first if self.num_rows else self.column
        columns = slice(self.column - width, self.column)
        # pads repeat the prompt's first token; the mask hides them
        steps = np.arange(width) - (width - lengths[:, None])
        index = (starts[:, None] + np.maximum(steps, 0))[prompt_of_row].reshape(-1)
        for layer, pair in prompts.captured.items():
            for buffer, packed in zip(self._pair(layer, pair), pair, strict=True):
                at = torch.from_numpy(index).to(packed.device)
                chosen = packed[0].transpose(0, 1).index_select(0, at).unflatten(0, (-1, width))
                buffer[rows, :, columns] = chosen.transpose(1, 2)
        self.starts = np.concatenate([self.starts[: self.num_rows], self.column - lengths[prompt_of_row]])
        self.num_rows = rows.stop
        self._rows_changed()
        self._clear(slice(0, rows.start), first_before)
        self._clear(rows, columns.start)

    def copy_of(self, row: int, num_tokens: int) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of the first tokens of a row, of each layer, [heads, tokens, head_dim]."""
        start = int(self.starts[row])
        columns = slice(start, start + num_tokens)
        return {
            layer: (keys[row, :, columns].clone(), values[row, :, columns].clone())
            for layer, (keys, values) in self._buffers.items()
        }

    def resize(self, rows: int, columns: int) -> None:
        """Other memory, with what rows have: layer by layer, so that little is there twice."""
        if (rows, columns) == (self.rows, self.columns):
            return
        used = slice(self._first, self.column)
        for layer, pair in self._buffers.items():
            resized = [self._memory(rows, columns, like=buffer) for buffer in pair]
            for new, old in zip(resized, pair, strict=True):
                new[: self.num_rows, :, used] = old[: self.num_rows, :, used]
            self._buffers[layer] = (resized[0], resized[1])
        self._rows_changed()

    def shift(self, by: int) -> None:
        """Move all rows `by` columns to the left, over columns that none of them needs; to the right where it is
        negative, for which there must be memory."""
        assert by <= self._first, "columns that rows need cannot be shifted out"
        source, target = slice(self._first, self.column), slice(self._first - by, self.column - by)
        for pair in self._buffers.values():
            for buffer in pair:
                buffer[: self.num_rows, :, target] = buffer[: self.num_rows, :, source].clone()
        self.column -= by
        self.starts = self.starts - by
        self._rows_changed()

    def keep(self, survivors: Survivors) -> None:
        """Drop the rows that are finished; the last ones take their places."""
        if len(survivors.holes):
            device = next(iter(self._buffers.values()))[0].device
            holes = torch.from_numpy(survivors.holes).to(device)
            movers = torch.from_numpy(survivors.movers).to(device)
            for buffer in self._used():
                buffer.index_copy_(0, holes, buffer.index_select(0, movers))
        self.starts = self.starts[survivors.order()]
        self.num_rows = survivors.num_rows
        self._rows_changed()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one column; returns all of a row's keys and values so far, [rows, heads, columns, head_dim]."""
        keys, values = self._views[layer_idx]
        first, column = self._first, self.column
        keys.narrow(2, column, 1).copy_(key_states)
        values.narrow(2, column, 1).copy_(value_states)
        return keys.narrow(2, first, column + 1 - first), values.narrow(2, first, column + 1 - first)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, formula: Formula) -> torch.Tensor:
        """One query per row, [rows, heads, 1, head_dim], over its columns: the heads that share keys are queries of
        one product."""
        width = key.shape[2]
        skipped = max(0, width - formula.window) if formula.window is not None else 0
        mask = None
        if self._mask is not None:
            mask = self._mask[:, :, :, self._first + skipped : self._first + width]
        if skipped:
            key, value = key[:, :, skipped:], value[:, :, skipped:]
        return shared_heads_attention(query, key, value, mask, formula)

    def advance(self) -> None:
        """The step is over in all layers."""
        self.column += 1

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.column

    def _used(self) -> list[torch.Tensor]:
        """The columns in use of every buffer."""
        return [buffer[:, :, self._first : self.column] for pair in self._buffers.values() for buffer in pair]

    def _pair(self, layer: int, like: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory of a layer: nothing is written before a row needs it, so that on a CPU columns to come take none."""
        if layer not in self._buffers:
            rows, columns = self._first_shape
            keys, values = (self._memory(rows, columns, like=item) for item in like)
            self._buffers[layer] = (keys, values)
        return self._buffers[layer]

    def _memory(self, rows: int, columns: int, like: torch.Tensor) -> torch.Tensor:
        self.num_memories += 1
        make = like.new_zeros if self._zeroed else like.new_empty
        return make((rows, like.shape[1], columns, like.shape[3]))

    def _reserved(self, dim: int) -> int:
        """Rows (0) or columns (2) of the buffers."""
        return next(iter(self._buffers.values()))[0].shape[dim] if self._buffers else 0

    def _clear(self, rows: slice, until: int) -> None:
        """What these rows have in columns that others need, up to this one: masked, and so it must be finite."""
        if rows.start < rows.stop and self._first < until:
            for pair in self._buffers.values():
                for buffer in pair:
                    buffer[rows, :, self._first : until] = 0

    def _rows_changed(self) -> None:
        """The first column any row needs, and the mask of rows that start later than that."""
        self.num_arrangements += 1
        starts, rows = self.starts[: self.num_rows], slice(self.num_rows)
        self._views = {layer: (keys[rows], values[rows]) for layer, (keys, values) in self._buffers.items()}
        if not self.num_rows:
            return
        self._first = int(starts.min())
        if (starts == self._first).all():
            self._mask = None
            return
        keys = next(iter(self._buffers.values()))[0]
        hidden = torch.from_numpy(np.arange(self._reserved(2)) < starts[:, None]).to(keys.device)
        mask = torch.zeros(hidden.shape, dtype=keys.dtype, device=keys.device)
        self._mask = mask.masked_fill_(hidden, torch.finfo(keys.dtype).min)[:, None, None]


def shared_heads_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, formula: Formula
) -> torch.Tensor:
    """[rows, 1, heads, head_dim] of one query per row, [rows, heads, 1, head_dim]."""
    rows, heads, _, head_dim = query.shape
    shared = query.reshape(rows, key.shape[1], heads // key.shape[1], head_dim)
    return single_step_attention(shared, key, value, mask, formula).reshape(rows, 1, heads, -1)


def single_step_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, formula: Formula
) -> torch.Tensor:
    """Attention with a mask to add, for few queries per row: on a CPU two batched products beat the flash kernel."""
    is_wide_on_cpu = query.device.type == "cpu" and query.dtype not in (torch.bfloat16, torch.float16)
    if formula.cap is None and not is_wide_on_cpu:
        if mask is not None and mask.storage_offset() % _ALIGNED_ELEMENTS:
            mask = mask.clone()
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=formula.scale)
    # batches of one dim: a product of more finds out how to fold them, which takes as long as a small one itself
    scores = formula.scores(query.flatten(0, 1), key.flatten(0, 1))
    if mask is not None:
        scores.view(*query.shape[:3], -1).add_(mask)
    return torch.bmm(softmax(scores).to(value.dtype), value.flatten(0, 1)).view(query.shape)
