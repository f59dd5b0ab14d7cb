"""Loss normalization, token-level or sequence-level: from a number per token to one per optimizer step.

Every aggregation divides twice:   L = (1 / N) · Σ_t x_t / d_t

The divisors depend on a token's own trajectory only, and N is counted once per optimizer step over all micro-batches
and ranks. A micro-batch contributes its own sum over that N, so the loss and its gradient do not depend on
how rows are split, nor on how many rows a trajectory has. Tokens are action tokens: masked ones are taken out before,
so a fully masked trajectory is absent from sums and counts alike. With y a trajectory, most often a row:

    TokenMean                 d = 1         N = tokens          DAPO      https://arxiv.org/abs/2503.14476
    SequenceMeanTokenMean     d = |y|       N = y with tokens   GRPO      https://arxiv.org/abs/2402.03300
    SequenceMeanTokenSum      d = 1         N = y with tokens
    SequenceMeanTokenSumNorm  d = constant  N = y with tokens   Dr. GRPO  https://arxiv.org/abs/2503.20783
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .registry import Registry


class Aggregation(Protocol):
    """Divisors of tokens, and what a trajectory adds to the denominator."""

    def divisors(self, row: Tensor, lengths: Tensor) -> Tensor | float:
        """What each token is divided by: [tokens] or one number for all. row: int64 [tokens], its row. lengths: int64
        [rows], actions of the row's trajectory."""
        ...

    def units(self, lengths: Tensor) -> Tensor:
        """What each trajectory adds to the denominator, [trajectories]. lengths: int64 [trajectories], its actions."""
        ...


AggregationFactory = Callable[[float], Aggregation]
"""Builds an aggregation from the longest response the job allows, in tokens."""

AGGREGATIONS: Registry[AggregationFactory] = Registry("aggregation")


@dataclass(frozen=True)
class TokenMean:
    """Every token weighs the same, so long trajectories weigh more."""

    def divisors(self, row: Tensor, lengths: Tensor) -> float:
        return 1.0

    def units(self, lengths: Tensor) -> Tensor:
        return lengths


@dataclass(frozen=True)
class SequenceMeanTokenMean:
    """Every trajectory weighs the same, so a token of a long one weighs less."""

    def divisors(self, row: Tensor, lengths: Tensor) -> Tensor:
        return lengths[row]

    def units(self, lengths: Tensor) -> Tensor:
        return lengths > 0


@dataclass(frozen=True)
class SequenceMeanTokenSum:
    """The mean over trajectories of the sum over the tokens of one."""

    def divisors(self, row: Tensor, lengths: Tensor) -> float:
        return 1.0

    def units(self, lengths: Tensor) -> Tensor:
        return lengths > 0


@dataclass(frozen=True)
class SequenceMeanTokenSumNorm:
    """The mean over trajectories of the sum of one over a constant: no length enters, not even a padded width."""

    constant: float

    def divisors(self, row: Tensor, lengths: Tensor) -> float:
        return self.constant

    def units(self, lengths: Tensor) -> Tensor:
        return lengths > 0


def numerator(aggregation: Aggregation, values: Tensor, row: Tensor, lengths: Tensor) -> Tensor:
    """The numerator of an aggregation.

    Σ_t x_t / d_t

    values: [tokens]. row: int64 [tokens]. lengths: int64 [rows], actions of the row's trajectory.
    Returns a scalar, attached to the graph of `values` even without tokens.
    """
    return (values / aggregation.divisors(row, lengths)).sum()


def aggregate(aggregation: Aggregation, values: Tensor, row: Tensor, lengths: Tensor, count: float) -> Tensor:
    """The local contribution to an aggregated loss.

    (1 / N) · Σ_t x_t / d_t

    values, row, lengths: as for `numerator`. count: N over all micro-batches and ranks; 0 means no token
    anywhere, and a loss of 0.
    Returns a scalar.
    """
    return numerator(aggregation, values, row, lengths) / max(count, 1.0)


@AGGREGATIONS.register("TokenMean")
def _token_mean(max_response_tokens: float) -> Aggregation:
    return TokenMean()


@AGGREGATIONS.register("SequenceMeanTokenMean")
def _sequence_mean_token_mean(max_response_tokens: float) -> Aggregation:
    return SequenceMeanTokenMean()


@AGGREGATIONS.register("SequenceMeanTokenSum")
def _sequence_mean_token_sum(max_response_tokens: float) -> Aggregation:
    return SequenceMeanTokenSum()


@AGGREGATIONS.register("SequenceMeanTokenSumNorm")
def _sequence_mean_token_sum_norm(max_response_tokens: float) -> Aggregation:
    return SequenceMeanTokenSumNorm(max_response_tokens)
