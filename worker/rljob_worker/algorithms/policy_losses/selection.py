"""The largest of numbers that lie on several ranks, without moving the numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

_BUCKETS = 1 << 16


def largest_over_ranks(digits: Tensor, among: Tensor, count: int, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """Which of this rank's tokens are among the `count` largest over all ranks.

    Radix selection: a histogram per digit, most significant first, tells the digit of the last one that is in

    Knuth, The Art of Computer Programming 3, section 5.2.5 (radix exchange, here to select)
    digits: int64 [digits, tokens] in [0, 65536). among: bool [tokens], the candidates. reduce: sums over ranks, called
    once per digit. Fewer candidates than `count` are all in; tokens equal in every digit are in or out together.
    Returns bool [tokens].
    """
    chosen, undecided, missing = torch.zeros_like(among), among.clone(), float(count)
    for digit in digits:
        histogram = reduce(torch.bincount(digit[undecided], minlength=_BUCKETS).double())
        above = histogram.flip(0).cumsum(0).flip(0) - histogram  # candidates with a larger digit
        last = int((above >= missing).sum().clamp(max=_BUCKETS - 1))
        chosen |= undecided & (digit > last)
        undecided &= digit == last
        missing -= float(above[last])
    return chosen | undecided


def digits_of_floats(values: Tensor) -> Tensor:
    """Four digits that order as the values do. values: float64 [tokens]. Returns int64 [4, tokens]."""
    # 0.0 turns -0.0 into 0.0; the bits of negative numbers order backwards
    bits = (values.double() + 0.0).numpy().view(np.int64)
    return _digits(np.where(bits < 0, ~bits, bits ^ np.int64(-1 << 63)).view(np.uint64))


def digits_of_bits(bits: np.ndarray) -> Tensor:
    """Four digits of numbers. bits: uint64 [tokens]. Returns int64 [4, tokens]."""
    return _digits(bits)


def _digits(bits: np.ndarray) -> Tensor:
    shifts = np.array([48, 32, 16, 0], np.uint64)[:, None]
    return torch.from_numpy(((bits >> shifts) & np.uint64(_BUCKETS - 1)).astype(np.int64))
