"""Response lengths whose logarithm is normal, cut at a longest one; as probabilities that a model can sample."""

from __future__ import annotations

import math


def log_normal_lengths(mean: float, longest: int, spread: float = 1.0) -> list[float]:
    """Probability of each length 1..`longest`; every longer draw becomes `longest`, and the mean is exact to 1e-6.

    `spread` is the standard deviation of the logarithm: with 1.0 a row in twenty is five times the median.
    """
    assert 1 < mean < longest
    low, high = 0.0, math.log(longest) + 4 * spread
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _mean(_probabilities(middle, longest, spread)) < mean else (low, middle)
    return _probabilities(low, longest, spread)


def _probabilities(location: float, longest: int, spread: float) -> list[float]:
    """Probability of each length that a draw exp(location + spread * normal) is rounded up to."""
    normal = [(math.log(n) - location) / spread for n in range(1, longest)]
    below = [0.0, *((1 + math.erf(z / math.sqrt(2))) / 2 for z in normal), 1.0]
    return [after - before for before, after in zip(below, below[1:], strict=False)]


def _mean(probabilities: list[float]) -> float:
    return sum(length * p for length, p in enumerate(probabilities, 1))
