"""What the kernel for rows of different lengths is handed, and when; the kernel itself runs on CUDA alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rljob_worker.batch import Column
from rljob_worker.engines.attention.flash import FlashRows, is_for_device, is_for_heads
from rljob_worker.engines.attention.varlen import Formula, PackedLayout
from rljob_worker.engines.packing import pack

CPU = torch.device("cpu")


def row_by_row(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    _starts_of_keys: torch.Tensor,
    longest: int,
    _longest_key: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
    num_splits: int | None,
) -> torch.Tensor:
    """What `varlen_attn` says it does: a query sees `window_size[0]` keys before its own, or all, and none after."""
    assert starts.dtype == torch.int32 and longest == int(starts.diff().max()) and window_size[1] == 0
    outputs = []
    for start, end in zip(starts.tolist(), starts[1:].tolist(), strict=False):
        steps = torch.arange(end - start)
        age = steps[:, None] - steps[None, :]
        mask = (age >= 0) & (age <= (window_size[0] if window_size[0] >= 0 else end))
        parts = (item[start:end].transpose(0, 1) for item in (query, key, value))
        out = F.scaled_dot_product_attention(*parts, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
        outputs.append(out.transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize("window", [None, 3])
def test_rows_without_padding_attend_as_rectangles_do(window: int | None) -> None:
    torch.manual_seed(0)
    prompts = Column.ragged([[5, 6, 7], [5, 6, 7], [1], [2, 3]])
    rows = pack(prompts, Column.ragged([[1, 2, 3, 4], [9], [8] * 7, [4, 4]]))
    layout = rows.sequences, rows.sequence_lengths, len(rows.token_ids), CPU
    query, key, value = (torch.randn(1, heads, len(rows.token_ids), 8, dtype=torch.float64) for heads in (4, 2, 2))
    result = FlashRows.build(*layout[:3]).attend(query, key, value, 0.3, window, kernel=row_by_row)
    expected = PackedLayout.build(*layout).attend(query, key, value, Formula(scale=0.3, window=window))
    assert result.shape == expected.shape and np.allclose(result, expected, atol=1e-12)


def test_the_kernel_is_for_some_devices_and_numbers() -> None:
    assert is_for_device("cuda", (9, 0)) and is_for_device("cuda", (8, 0))
    assert not is_for_device("cuda", (7, 5)) and not is_for_device("cpu", None)
    assert is_for_heads(torch.bfloat16, 128, None)
    assert not is_for_heads(torch.float32, 128, None)
    assert not is_for_heads(torch.bfloat16, 512, None)
    assert not is_for_heads(torch.bfloat16, 128, 50.0)
    assert PackedLayout.build(np.arange(3), np.array([3]), 3, CPU).flash is None
