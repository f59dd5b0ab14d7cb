"""One more token for every row, by steps whose shapes and addresses repeat, so that a device can record them.

The cache's own way (`kv_cache`) has another shape at every step: the column that is written, and how many are read.
Here both are data. A step is of so many rows and columns as the next power of two; rows beyond those that decode are
computed and thrown away, and a mask hides from each row the columns that are not its own:

    columns  0 1 2 3 4 5 6 7        column 5 is written
    row 0    . . p p a b . .        start 2
    row 1    p p p p a b . .        start 0
    row 2    . . . . . . . .        decodes nothing: reads nothing, and is read by nobody

A step belongs to its rows, its columns and the cache's memory, and is recorded when they first come together.
Transformers records graphs in its continuous batching too, for a paged cache and draws of its own: ours are a function
of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from transformers.cache_utils import Cache

from rljob_worker.batch import Indices
from rljob_worker.engines.attention.varlen import Formula
from rljob_worker.engines.rollout.transformers.kv_cache import DecodeCache, shared_heads_attention
from rljob_worker.engines.router import routers

LEAST_COLUMNS = 256

Step = Callable[[], torch.Tensor]
"""Computes from memory that it knows, which is filled before; the logits, good until the next step."""
Pair = tuple[torch.Tensor, torch.Tensor]


def padded_size(needed: int, least: int, most: int) -> int:
    """The next power of two, at least `least` and at most `most`, which has room: 5 of 12 is 8, 9 of 12 is 12."""
    assert 0 < needed <= most, f"{needed} of at most {most}"
    return min(most, max(least, 1 << (needed - 1).bit_length()))


class ColumnMasks:
    """What is added to the scores of every row: 0 where it may look, else the least number. One mask [rows, 1, 1,
    columns] for each window that layers have, all of them always in the same memory."""

    def __init__(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> None:
        self._like = torch.empty(rows, 1, 1, columns, dtype=dtype, device=device)
        self._masks: dict[int | None, torch.Tensor] = {}
        self._starts = torch.full((rows,), columns, device=device)
        self._num_rows, self._last = 0, -1

    def refill(self, starts: Indices, column: int) -> None:
        """For these rows, which have all columns from their starts up to this one, which is not theirs yet."""
        self._num_rows, self._last = len(starts), column - 1
        self._starts.fill_(self._like.shape[-1])
        self._starts[: len(starts)] = torch.from_numpy(starts).to(self._starts.device)
        for window, mask in self._masks.items():
            self._fill(mask, window)

    def open(self, column: int) -> None:
        """The next column is theirs, too."""
        self._last = column
        for window, mask in self._masks.items():
            mask[: self._num_rows, :, :, column] = 0
            if window is not None and column >= window:
                mask[:, :, :, column - window] = self._hidden

    def of(self, window: int | None) -> torch.Tensor:
        if window not in self._masks:
            self._masks[window] = torch.empty_like(self._like)
            self._fill(self._masks[window], window)
        return self._masks[window]

    @property
    def _hidden(self) -> float:
        return float(torch.finfo(self._like.dtype).min)

    def _fill(self, mask: torch.Tensor, window: int | None) -> None:
        columns = torch.arange(mask.shape[-1], device=mask.device)
        seen = (columns >= self._starts[:, None]) & (columns <= self._last)
        if window is not None:
            seen &= columns > self._last - window
        mask.fill_(self._hidden)
        mask.masked_fill_(seen[:, None, None], 0)


class _Memory:
    """What steps read and write besides the model, as long as the cache keeps its own."""

    def __init__(self, cache: DecodeCache) -> None:
        keys = next(iter(cache.buffers.values()))[0]
        rows, device = cache.rows, keys.device
        self.buffers: Mapping[int, Pair] = dict(cache.buffers)
        self.tokens = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.positions = torch.zeros_like(self.tokens)
        self.column = torch.zeros(1, dtype=torch.int64, device=device)
        self.masks = ColumnMasks(rows, cache.columns, keys.dtype, device)
        self.steps: dict[tuple[int, int], Step] = {}

    def fill(self, cache: DecodeCache, tokens: torch.Tensor, positions: Indices) -> None:
        self.tokens[: cache.num_rows, 0] = tokens
        self.positions[: cache.num_rows, 0] = torch.from_numpy(positions).to(self.positions.device)
        self.column.fill_(cache.column)
        self.masks.open(cache.column)


class _View(Cache):  # type: ignore[misc]
    """The first rows and columns of a cache, and the attention layout of a step over them."""

    is_compileable = False

    def __init__(self, memory: _Memory, rows: int, columns: int) -> None:
        super().__init__(layers=[])
        self._memory, self._rows, self._columns = memory, rows, columns

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> Pair:
        keys, values = (buffer[: self._rows, :, : self._columns] for buffer in self._memory.buffers[layer_idx])
        keys.index_copy_(2, self._memory.column, key_states)
        values.index_copy_(2, self._memory.column, value_states)
        return keys, values

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, formula: Formula) -> torch.Tensor:
        mask = self._memory.masks.of(formula.window)[: self._rows, :, :, : self._columns]
        return shared_heads_attention(query, key, value, mask, formula)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class StaticSteps:
    """Steps over a cache whose memory is finite everywhere (`DecodeCache(zeroed=True)`).

    record: from a step to one that does the same; what it calls is warmed up and never changes its addresses.
    """

    def __init__(self, model: torch.nn.Module, record: Callable[[Step], Step]) -> None:
        self._model, self._record = model, record
        self.forget()

    def forget(self) -> None:
        """Give back what was recorded, and all memory beside it."""
        self._memory: _Memory | None = None
        self._known = (-1, -1)

    def step(self, cache: DecodeCache, tokens: torch.Tensor, positions: Indices) -> torch.Tensor:
        """Logits [rows, vocabulary] of the next token of every row, from the last one and its position; [rows]."""
        memory = self._memory_of(cache)
        memory.fill(cache, tokens, positions)
        size = padded_size(cache.num_rows, 1, cache.rows), padded_size(cache.column + 1, LEAST_COLUMNS, cache.columns)
        if size not in memory.steps:
            memory.steps[size] = self._record(partial(self._forward, memory, *size))
        return memory.steps[size]()[: cache.num_rows]

    def _memory_of(self, cache: DecodeCache) -> _Memory:
        memories, _ = self._known
        if self._memory is None or memories != cache.num_memories:
            self._memory = _Memory(cache)
        if self._known != (result := (cache.num_memories, cache.num_arrangements)):
            self._memory.masks.refill(cache.starts[: cache.num_rows], cache.column)
            self._known = result
        return self._memory

    def _forward(self, memory: _Memory, rows: int, columns: int) -> torch.Tensor:
        view = _View(memory, rows, columns)
        logits: torch.Tensor = self._model(
            input_ids=memory.tokens[:rows],
            position_ids=memory.positions[:rows],
            past_key_values=view,
            use_cache=True,
            attention_layout=view,
        ).logits
        return logits[:, -1]


def can_record(model: torch.nn.Module, device: torch.device) -> bool:
    """Whether steps are recorded of which nobody says that they have to be: each of a model with experts computes
    others."""
    return device.type == "cuda" and torch.version.hip is None and not routers(model)


class CUDAGraphs:
    """Records steps on a CUDA device; all of them share what they need in between."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        with torch.cuda.device(self._device):
            here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                step()  # what libraries make at their first call does not belong into a graph
            here.wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            # another thread may take the next version into memory of the device meanwhile
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                logits = step()

        def replay() -> torch.Tensor:
            graph.replay()
            return logits

        return replay
