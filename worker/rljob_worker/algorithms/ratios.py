"""Importance ratios that stay finite and keep a gradient."""

from __future__ import annotations

from torch import Tensor

LOG_LIMIT = 20.0
"""Above this log-ratio (a ratio of 4.9e8) the exponential goes on as its tangent."""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """exp(x), continued above 20 by its tangent.

    e^x for x <= 20, e^20 · (1 + x - 20) above

    A clamp would have no gradient out there: a token whose probability grew far too much could never be
    pushed back.
    log_ratio: [tokens]. Returns [tokens], finite, increasing and differentiable for every finite input.
    """
    bounded = log_ratio.clamp(max=LOG_LIMIT)
    return bounded.exp() * (1.0 + log_ratio - bounded)
