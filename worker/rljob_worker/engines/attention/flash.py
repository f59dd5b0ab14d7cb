"""Attention over rows side by side without any padding, by torch's flash kernel for rows of different lengths.

The kernel runs on CUDA alone, which no test has. What it is handed is tested against rectangles, with a stand-in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.attention.varlen import varlen_attn

from rljob_worker.batch import Indices
from rljob_worker.batch.gather import offsets_of

Kernel = Callable[..., torch.Tensor]

_CAPABILITY = (8, 0)
"""CUDA compute capability of the oldest devices that the kernel is for."""
SHORT_DTYPES = (torch.bfloat16, torch.float16)
_WIDEST_HEAD = 256


def is_for_device(device_type: str, capability: tuple[int, int] | None) -> bool:
    return device_type == "cuda" and capability is not None and capability >= _CAPABILITY


def is_for_heads(dtype: torch.dtype, head_dim: int, cap: float | None) -> bool:
    """Whether the kernel knows these numbers and this formula."""
    return dtype in SHORT_DTYPES and head_dim <= _WIDEST_HEAD and head_dim % 8 == 0 and cap is None


@dataclass(frozen=True, slots=True)
class FlashRows:
    """The rows of one pack, one after another."""

    gather: torch.Tensor
    """[attended] packed position of each token of each row; those of a shared prompt come several times."""
    scatter: torch.Tensor
    """[tokens] where among them each packed token is."""
    starts: torch.Tensor
    """[rows + 1] int32: where each row begins, and the end."""
    longest: int

    @staticmethod
    def build(sequences: Indices, lengths: Indices, num_tokens: int) -> FlashRows:
        """From packed positions of each row in turn, and how many each row has; in host memory."""
        scatter = np.zeros(num_tokens, np.int64)
        scatter[sequences] = np.arange(len(sequences))
        return FlashRows(
            gather=torch.from_numpy(sequences),
            scatter=torch.from_numpy(scatter),
            starts=torch.from_numpy(offsets_of(lengths)).to(torch.int32),
            longest=int(lengths.max(initial=0)),
        )

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
        window: int | None,
        kernel: Kernel = varlen_attn,
    ) -> torch.Tensor:
        """query, key, value: [1, heads, tokens, head_dim]; returns [1, tokens, heads, head_dim]. window: keys that a
        query sees, its own included."""
        rows = (item[0].transpose(0, 1).index_select(0, self.gather) for item in (query, key, value))
        out = kernel(
            *rows,
            self.starts,
            self.starts,
            self.longest,
            self.longest,
            scale=scale,
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
            num_splits=1 if torch.are_deterministic_algorithms_enabled() else None,
        )
        return out.index_select(0, self.scatter)[None]
