"""From one number per token to one number per optimizer step.

Every aggregation divides twice:   L = (1 / N) · Σ_t x_t / d_t

The divisors depend on a token's own row only, and N is counted once per optimizer step over all micro-batches
and ranks. A micro-batch contributes its own sum over that N, so the loss and its gradient do not depend on
how rows are split. Tokens are action tokens: masked ones are taken out before, so a fully masked row is
absent from sums and counts alike. A micro-batch holds whole rows.

    TokenMean                 d = 1         N = tokens            DAPO      https://arxiv.org/abs/2503.14476
    SequenceMeanTokenMean     d = |row|     N = rows with tokens  GRPO      https://arxiv.org/abs/2402.03300
    SequenceMeanTokenSum      d = 1         N = rows with tokens
    SequenceMeanTokenSumNorm  d = constant  N = rows with tokens  Dr. GRPO  https://arxiv.org/abs/2503.20783
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .registry import Registry
from .segments import segment_count


class Aggregation(Protocol):
    """Divisors of tokens, and the local share of the denominator."""

    def divisors(self, row: Tensor, num_rows: int) -> Tensor | float:
        """What each token is divided by: [tokens] or one number for all. row: int64 [tokens], its row."""
        ...

    def count(self, row: Tensor, num_rows: int) -> Tensor:
        """The local denominator, a scalar to be summed over micro-batches and ranks."""
        ...


AggregationFactory = Callable[[float], Aggregation]
"""Builds an aggregation from the longest response the job allows, in tokens."""

AGGREGATIONS: Registry[AggregationFactory] = Registry("aggregation")


@dataclass(frozen=True)
class TokenMean:
    """Every token weighs the same, so long rows weigh more."""

    def divisors(self, row: Tensor, num_rows: int) -> float:
        return 1.0

    def count(self, row: Tensor, num_rows: int) -> Tensor:
        return torch.tensor(len(row), device=row.device)


@dataclass(frozen=True)
class SequenceMeanTokenMean:
    """Every row weighs the same, so a token of a long row weighs less."""

    def divisors(self, row: Tensor, num_rows: int) -> Tensor:
        return segment_count(row, num_rows)[row]

    def count(self, row: Tensor, num_rows: int) -> Tensor:
        return _rows_with_tokens(row, num_rows)


@dataclass(frozen=True)
class SequenceMeanTokenSum:
    """The mean over rows of the sum over a row's tokens."""

    def divisors(self, row: Tensor, num_rows: int) -> float:
        return 1.0

    def count(self, row: Tensor, num_rows: int) -> Tensor:
        return _rows_with_tokens(row, num_rows)


@dataclass(frozen=True)
class SequenceMeanTokenSumNorm:
    """The mean over rows of a row's sum over a constant: no length enters, not even a padded width."""

    constant: float

    def divisors(self, row: Tensor, num_rows: int) -> float:
        return self.constant

    def count(self, row: Tensor, num_rows: int) -> Tensor:
        return _rows_with_tokens(row, num_rows)


def numerator(aggregation: Aggregation, values: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """The numerator of an aggregation.

    Σ_t x_t / d_t

    values: [tokens]. row: int64 [tokens].
    Returns a scalar, attached to the graph of `values` even without tokens.
    """
    return (values / aggregation.divisors(row, num_rows)).sum()


def aggregate(aggregation: Aggregation, values: Tensor, row: Tensor, num_rows: int, count: float) -> Tensor:
    """The local contribution to an aggregated loss.

    (1 / N) · Σ_t x_t / d_t

    values: [tokens]. row: int64 [tokens]. count: N over all micro-batches and ranks; 0 means no token
    anywhere, and a loss of 0.
    Returns a scalar.
    """
    return numerator(aggregation, values, row, num_rows) / max(count, 1.0)


def _rows_with_tokens(row: Tensor, num_rows: int) -> Tensor:
    return (segment_count(row, num_rows) > 0).sum()


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
