"""Causal attention over packed rows, for any model that lets transformers choose its attention.

Linear layers see packed tokens only, [1, tokens]. Attention needs rows side by side, so each layer's queries, keys and
values are gathered into a few rectangles of rows of similar length, right-padded, where plain causal attention is
exact: no real token comes after a pad. The outputs are gathered back. Rows that share a prompt gather the same
tokens.

    rows of lengths 9 8 8 | 3 2  ->  rectangles [3, 9] and [2, 3]: 33 slots, not the 45 of one padded rectangle

On CUDA devices that have a kernel for rows of different lengths, that is asked instead (`flash`).

No mask function is registered under our name, so transformers builds no masks. A model's forward gets
the layout as the keyword `attention_layout`, which transformers hands through to the attention function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from rljob_api.memory.sizes import SCORES_ELEMENTS
from rljob_worker.batch import Indices
from rljob_worker.batch.gather import offsets_of
from rljob_worker.engines.attention.flash import SHORT_DTYPES, FlashRows, is_for_device, is_for_heads
from rljob_worker.engines.packing import ranges
from rljob_worker.errors import InvalidJob

ATTENTION = "rljob"
"""The name to give transformers as `attn_implementation`. It is written into the config: models must not share one."""

_WASTE_PER_RECTANGLE = 4000
"""Padded query-key pairs worth one more attention call; a call costs about 50 microseconds on a CPU."""

_UNSUPPORTED = ("s_aux", "position_bias")
"""Arguments by which a model asks for another formula than softmax(QK)V."""


@dataclass(frozen=True, slots=True)
class Formula:
    """What a layer computes: softmax(cap(QK' * scale)) V, each query over the last `window` keys."""

    scale: float | None = None
    """None: one over the root of the heads' size."""
    window: int | None = None
    cap: float | None = None
    """Scores are bounded by c tanh(score / c)."""

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """[..., queries, keys], before the mask and the softmax."""
        scores = torch.matmul(query * self.factor(query.shape[-1]), key.mT)
        return scores if self.cap is None else torch.tanh(scores / self.cap) * self.cap

    def factor(self, head_dim: int) -> float:
        """What products of queries and keys are multiplied by."""
        return head_dim**-0.5 if self.scale is None else self.scale

    def slope(self, scores: torch.Tensor) -> torch.Tensor | float:
        """How much each of these scores grows with the one that is not bounded."""
        return 1.0 if self.cap is None else 1.0 - (scores / self.cap) ** 2


class AttentionLayout(Protocol):
    """How the queries of one forward meet their keys."""

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, formula: Formula) -> torch.Tensor:
        """query, key, value: [batch, heads, tokens, head_dim]; returns [batch, tokens, heads, head_dim]."""
        ...


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Attention within each row of one pack."""

    gather: torch.Tensor | None
    """[slots] packed position of each slot; None when the pack is one rectangle as it stands."""
    scatter: torch.Tensor | None
    """[tokens] slot that computes each packed token."""
    rectangles: tuple[tuple[int, int], ...]
    """(rows, length) of each rectangle; their slots follow one another."""
    flash: FlashRows | None = None
    """Layout of the rows without padding, on devices that have a kernel for them."""

    @staticmethod
    def build(sequences: Indices, lengths: Indices, num_tokens: int, device: torch.device) -> PackedLayout:
        """From packed positions of each row in turn, and how many each row has: for a device, in host memory."""
        gather, scatter, rectangles = plan_rectangles(sequences, lengths, num_tokens)
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        flash = None
        if is_for_device(device.type, capability):
            flash = FlashRows.build(sequences, lengths, num_tokens)
        if np.array_equal(gather, np.arange(num_tokens)):
            return PackedLayout(None, None, rectangles, flash)
        return PackedLayout(torch.from_numpy(gather), torch.from_numpy(scatter), rectangles, flash)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, formula: Formula) -> torch.Tensor:
        if self.flash is not None and is_for_heads(query.dtype, query.shape[-1], formula.cap):
            return self.flash.attend(query, key, value, formula.scale, formula.window)
        num_tokens, heads = query.shape[2], query.shape[1]
        padded = [self._slots(x) for x in (query, key, value)]
        outputs, start = [], 0
        for rows, length in self.rectangles:
            q, k, v = (x[start : start + rows * length].unflatten(0, (rows, length)).transpose(1, 2) for x in padded)
            out = causal_attention(q, k, v, formula)
            outputs.append(out.transpose(1, 2).reshape(rows * length, -1))
            start += rows * length
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        if self.scatter is not None:
            joined = joined.index_select(0, self.scatter)
        return joined.view(1, num_tokens, heads, -1)

    def _slots(self, x: torch.Tensor) -> torch.Tensor:
        """[1, heads, tokens, head_dim] -> [slots, heads, head_dim]."""
        packed = x[0].transpose(0, 1)
        if self.gather is None:
            return packed
        return packed.reshape(packed.shape[0], -1).index_select(0, self.gather).view(-1, *packed.shape[1:])


def plan_rectangles(
    sequences: Indices, lengths: Indices, num_tokens: int
) -> tuple[Indices, Indices, tuple[tuple[int, int], ...]]:
    """Slots of each rectangle (pads point at token 0), the slot that owns each token, and the rectangles, longest
    first."""
    if not len(lengths):
        return np.empty(0, np.int64), np.empty(0, np.int64), ()
    order = np.argsort(-lengths, kind="stable")
    starts = offsets_of(lengths)[:-1]
    gather, rectangles = [], []
    scatter = np.empty(num_tokens, np.int64)
    filled = 0
    for rows in _similar_lengths(order, lengths):
        length = int(lengths[rows[0]])
        slots = np.zeros(len(rows) * length, np.int64)
        real = ranges(np.arange(len(rows)) * length, lengths[rows])
        slots[real] = sequences[ranges(starts[rows], lengths[rows])]
        # reversed: of the rows that share a prompt, the first computes it
        scatter[slots[real][::-1]] = filled + real[::-1]
        gather.append(slots)
        rectangles.append((len(rows), length))
        filled += len(slots)
    return np.concatenate(gather), scatter, tuple(rectangles)


def _similar_lengths(order: Indices, lengths: Indices) -> list[Indices]:
    """Cut rows, longest first, where the padding of a rectangle would cost more than a new one."""
    cuts, waste, longest = [], 0, int(lengths[order[0]])
    for at, length in enumerate(lengths[order].tolist()):
        waste += longest * longest - length * length
        if waste > _WASTE_PER_RECTANGLE and length < longest:
            cuts.append(at)
            waste, longest = 0, length
    return np.split(order, cuts)


def causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, formula: Formula) -> torch.Tensor:
    """Causal attention of [rows, heads, length, head_dim], with fewer key heads than query heads where the model has
    them. Of more keys than queries, the last ones are those of the queries' own tokens."""
    queries, keys, window = query.shape[2], key.shape[2], formula.window
    if formula.cap is not None:
        return _bounded_attention(query, key, value, formula)
    mask = None
    if keys > queries or (window is not None and keys > window):
        mask = _sees(queries, keys, keys - queries, window, query.device)
    if not groups_heads(query.device.type, query.dtype, masked=mask is not None):
        key, value = (item.repeat_interleave(query.shape[1] // item.shape[1], dim=1) for item in (key, value))
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=formula.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def groups_heads(device_type: str, dtype: torch.dtype, *, masked: bool) -> bool:
    """Whether a kernel that keeps no scores reads one key head for several query heads. On CUDA only that for 16 bits
    and no mask does; for others key heads are repeated, or torch would take the one that keeps length^2 scores."""
    return device_type != "cuda" or (dtype in SHORT_DTYPES and not masked)


def _sees(queries: int, keys: int, first: int, window: int | None, device: torch.device) -> torch.Tensor:
    """[queries, keys] whether a query sees a key; `first`: the key that is the first query's own."""
    own = torch.arange(first, first + queries, device=device)
    age = own[:, None] - torch.arange(keys, device=device)[None, :]
    return (age >= 0) & (age < (window or keys))


def _bounded_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, formula: Formula) -> torch.Tensor:
    """Attention with bounded scores, which no kernel of torch does: some queries of all rows at a time, so that at
    most SCORES_ELEMENTS scores are in memory, and again in the backward pass."""
    rows, heads, length, _ = query.shape
    before = key.shape[2] - length
    at_once = max(1, SCORES_ELEMENTS // (rows * heads * key.shape[2]))
    outputs = []
    for start in range(0, length, at_once):
        stop = min(start + at_once, length)
        own = before + start
        first = 0 if formula.window is None else max(0, own - formula.window + 1)
        seen = slice(first, before + stop)
        outputs.append(
            checkpoint(
                _bounded_run,
                query[:, :, start:stop],
                key[:, :, seen],
                value[:, :, seen],
                own - first,
                formula,
                use_reentrant=False,
                preserve_rng_state=False,
            )
        )
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


def _bounded_run(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, first: int, formula: Formula
) -> torch.Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    sees = _sees(query.shape[2], key.shape[2], first, formula.window, query.device)
    scores = formula.scores(query, key).masked_fill(~sees, -torch.inf)
    return torch.matmul(softmax(scores).to(value.dtype), value)


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """Over the keys, in at least float32."""
    return torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    attention_layout: AttentionLayout | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in every layer. Dropout is never applied: log-probs of one policy must be one number."""
    asked = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if asked:
        raise InvalidJob(
            f"{type(module).__name__} needs attention with {', '.join(asked)}, which the Transformers and FSDP "
            "engines do not compute; use another model"
        )
    assert attention_layout is not None, f"{type(module).__name__} did not hand `attention_layout` through"
    return attention_layout.attend(query, key, value, Formula(scaling, sliding_window, softcap)), None


AttentionInterface.register(ATTENTION, attention)
