"""Rows in the cache: who fills whose place, and what growing and shifting keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.engines.attention.varlen import Formula
from rljob_worker.engines.rollout.transformers.kv_cache import (
    DecodeCache,
    PromptCapture,
    Survivors,
    single_step_attention,
)


def test_the_last_rows_fill_the_gaps() -> None:
    survivors = Survivors.of(np.array([False, True, False, True, False]))
    assert survivors.num_rows == 3
    assert survivors.holes.tolist() == [1]
    assert survivors.movers.tolist() == [4]
    assert survivors.order().tolist() == [0, 4, 2]


@given(st.lists(st.booleans(), max_size=20))
def test_every_unfinished_row_goes_on_once(finished: list[bool]) -> None:
    order = Survivors.of(np.array(finished, bool)).order()
    assert sorted(order.tolist()) == [row for row, done in enumerate(finished) if not done]


def with_two_prompts(columns: int) -> DecodeCache:
    """Prompts with keys [1 2] and [3], for rows 0 and 1, and 2."""
    prompts = PromptCapture()
    packed = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 3, 1)
    prompts.update(packed, packed, 0)
    cache = DecodeCache()
    cache.restart(3, 2, columns)
    cache.admit(prompts, np.array([0, 0, 1]), np.array([0, 2]), np.array([2, 1]))
    return cache


def keys_after(cache: DecodeCache, value: float) -> list[list[float]]:
    """Write one token to every row; the keys its attention sees."""
    token = torch.full((cache.num_rows, 1, 1, 1), value)
    keys, _ = cache.update(token, token, 0)
    cache.advance()
    return keys[:, 0, :, 0].tolist()


def test_prompts_end_where_responses_begin() -> None:
    cache = with_two_prompts(columns=300)
    assert cache.lengths.tolist() == [2, 2, 1]
    # the third row's first column is a pad, which the mask hides
    assert keys_after(cache, 9.0) == [[1, 2, 9], [1, 2, 9], [3, 3, 9]]
    out = cache.attend(
        torch.zeros(3, 1, 1, 1), *[torch.tensor([[1.0, 2, 9], [1, 2, 9], [7, 3, 9]]).view(3, 1, 3, 1)] * 2, Formula(1.0)
    )
    # a query of zero weighs all keys alike: means of 1 2 9 and of 3 9
    assert out.view(-1).tolist() == [4, 4, 6]


def test_columns_are_reserved_as_they_are_needed_and_keep_what_they_hold() -> None:
    cache = with_two_prompts(columns=200)
    for step in range(2, 258):
        if cache.is_full:
            cache.resize(3, 2 * cache.columns)
        keys = keys_after(cache, float(step))
    cache.keep(Survivors.of(np.array([True, False, False])))
    cache.resize(2, 300)
    assert keys_after(cache, 258.0) == [[3, 3, *map(float, range(2, 259))], [1, 2, *map(float, range(2, 259))]]
    assert len(keys) == 3


def test_columns_that_no_row_needs_are_shifted_out() -> None:
    cache = with_two_prompts(columns=4)
    keys_after(cache, 5.0)
    cache.keep(Survivors.of(np.array([True, True, False])))
    keys_after(cache, 6.0)
    assert cache.is_full and cache.first == 1
    cache.shift(1)
    assert cache.column == 3 and not cache.is_full
    assert keys_after(cache, 7.0) == [[3, 5, 6, 7]]
    cache.resize(1, 6)
    assert cache.nbytes == 2 * 6 * 4  # keys and values of one layer in float32
    assert keys_after(cache, 8.0) == [[3, 5, 6, 7, 8]]


def test_rows_move_to_the_right_for_a_longer_prompt() -> None:
    cache = with_two_prompts(columns=3)
    keys_after(cache, 5.0)
    cache.resize(4, 8)
    cache.shift(-4)
    assert cache.lengths.tolist() == [3, 3, 2]
    longer = PromptCapture()
    packed = torch.arange(10.0, 17.0).view(1, 1, 7, 1)
    longer.update(packed, packed, 0)
    cache.admit(longer, np.array([0]), np.array([0]), np.array([7]))
    keys = keys_after(cache, 6.0)
    assert [row[-length:] for row, length in zip(keys, (4, 4, 3, 8), strict=True)] == [
        [1, 2, 5, 6],
        [1, 2, 5, 6],
        [3, 5, 6],
        [*range(10, 17), 6],
    ]


@pytest.mark.parametrize("first", [0, 1, 8, 13])
def test_a_mask_begins_where_a_kernel_can_read_it(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    offsets: list[int] = []
    attention = F.scaled_dot_product_attention

    def noted(*tensors: torch.Tensor, attn_mask: torch.Tensor, scale: float | None) -> torch.Tensor:
        offsets.append(attn_mask.storage_offset())
        return attention(*tensors, attn_mask=attn_mask, scale=scale)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    query, key, value = (torch.randn(2, 1, length, 8, dtype=torch.bfloat16) for length in (1, 5, 5))
    mask = torch.randn(2, 1, 1, 24, dtype=torch.bfloat16)[..., first : first + 5]
    result = single_step_attention(query, key, value, mask, Formula())
    assert [offset % 8 for offset in offsets] == [0]
    assert torch.equal(result, attention(query, key, value, attn_mask=mask))
