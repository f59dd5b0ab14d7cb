"""Sums, means, maxima and discounted suffix sums over runs of a packed tensor.

A packed tensor holds row after row without padding; `segment` is the row (or group) of each value:

    values  [1., 2., 3., 4.]        segment [0, 0, 2, 2]      num_segments 3
    segment_sum -> [3., 0., 7.]     segment_mean -> [1.5, 0., 3.5]     segment_max -> [2., -inf, 4.]

All are differentiable, and deterministic on the CPU: values are added in their order.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 64
_CACHED = 65_536  # tokens


def segment_count(segment: Tensor, num_segments: int) -> Tensor:
    """Number of values in each segment.

    segment: int64 [values]. Returns int64 [num_segments].
    """
    # bincount looks for the largest value, for which the host would wait
    return segment.new_zeros(num_segments).scatter_add(0, segment, torch.ones_like(segment))


def segment_sum(values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Sum of each segment; 0 for an empty one.

    values: [values]. segment: int64 [values], in any order. Returns [num_segments].
    """
    return values.new_zeros(num_segments).index_add(0, segment, values)


def segment_mean(values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Mean of each segment; 0 for an empty one.

    values: [values]. segment: int64 [values], in any order. Returns [num_segments].
    """
    count = segment_count(segment, num_segments).clamp(min=1)
    return segment_sum(values, segment, num_segments) / count


def segment_max(values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Largest value of each segment; -inf for an empty one.

    values: floating [values]. segment: int64 [values], in any order. Returns [num_segments].
    """
    lowest = values.new_full((num_segments,), -torch.inf)
    return lowest.scatter_reduce(0, segment, values, "amax")


def run_of(values: Tensor) -> Tensor:
    """The number of the run of equal values that each belongs to: [7, 7, 3, 7] -> [0, 0, 1, 2].

    values: [values]. Returns int64 [values].
    """
    begins = torch.zeros_like(values, dtype=torch.int64)
    begins[1:] = values[1:] != values[:-1]
    return begins.cumsum(0)


def is_last(row: Tensor) -> Tensor:
    """Whether each token is the last one of its row.

    row: int64 [tokens], ascending. Returns bool [tokens].
    """
    last = torch.ones_like(row, dtype=torch.bool)
    last[:-1] = row[:-1] != row[1:]
    return last


def discounted_suffix_sum(values: Tensor, lengths: Tensor, discount: float) -> Tensor:
    """Sum of each token's value and all later ones of its row, discounted by distance.

    y_t = Σ_{k >= t} discount^(k-t) · x_k, that is y_t = x_t + discount · y_{t+1}

    Blelloch 1990, https://www.cs.cmu.edu/~guyb/papers/Ble93.pdf (scans of linear recurrences)
    One triangular matrix product inside all blocks of 64, the same again over the blocks: no loop over tokens.
    values: [tokens], packed. lengths: int64 [rows], adding up to tokens. discount: in [0, 1].
    Returns [tokens] in the dtype of `values`; computed in float64.
    """
    assert 0.0 <= discount <= 1.0, f"a discount of {discount} is outside [0, 1]"
    parts = [
        _suffix_scan(values[tokens].double(), lengths[rows], discount).to(values.dtype)
        for rows, tokens in row_chunks(lengths, len(values))
    ]
    return torch.cat(parts) if parts else values.clone()


def row_chunks(lengths: Tensor, num_tokens: int) -> list[tuple[slice, slice]]:
    """Rows and their tokens in pieces that fit the cache, where work on rows is several times as fast.

    lengths: int64 [rows], adding up to num_tokens. Returns slices of rows and of tokens: on the CPU of about
    65,536 tokens each, elsewhere a single piece; none without rows.
    """
    num_rows = len(lengths)
    if num_rows == 0:
        return []
    step = num_rows if lengths.device.type != "cpu" else max(num_rows * _CACHED // max(num_tokens, 1), 1)
    ends = [*range(step, num_rows, step), num_rows]
    token_ends = lengths.cumsum(0)[[end - 1 for end in ends]].tolist()
    rows = zip([0, *ends], ends, strict=False)
    tokens = zip([0, *token_ends], token_ends, strict=False)
    return [(slice(*r), slice(*t)) for r, t in zip(rows, tokens, strict=True)]


def _suffix_scan(values: Tensor, lengths: Tensor, discount: float) -> Tensor:
    if len(values) == 0:
        return values
    num_blocks = (lengths + _BLOCK - 1) // _BLOCK  # [rows]: every row starts a block of its own
    block_ends = num_blocks.cumsum(0)
    slots = _slots(lengths, (block_ends - num_blocks) * _BLOCK, len(values))
    padded = values.new_zeros(int(block_ends[-1]) * _BLOCK)
    blocks = padded.index_copy(0, slots, values).view(-1, _BLOCK)

    distance = torch.arange(_BLOCK, device=values.device)
    powers = discount ** (distance[:, None] - distance).clamp(min=0).to(values.dtype)  # [later, earlier]
    sums = blocks @ powers.tril()
    if int(num_blocks.max()) > 1:
        # what the rest of the row adds to a block arrives at its end and decays towards its start
        following = _suffix_scan(sums[:, 0], num_blocks, discount**_BLOCK).roll(-1)
        following[block_ends - 1] = 0.0
        sums = sums + following[:, None] * discount ** (_BLOCK - distance).to(values.dtype)
    return sums.view(-1).index_select(0, slots)


def _slots(lengths: Tensor, block_starts: Tensor, num_values: int) -> Tensor:
    """Where each packed value lies once every row starts at its `block_starts`; int64 [num_values]."""
    row_starts = lengths.cumsum(0) - lengths
    shift = torch.repeat_interleave(block_starts - row_starts, lengths, output_size=num_values)
    return shift + torch.arange(num_values, device=lengths.device)
