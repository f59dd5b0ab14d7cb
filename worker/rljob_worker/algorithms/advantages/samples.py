"""What every estimator gets and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ..registry import Registry

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import AdvantageSpec

Reduce = Callable[[Tensor], Tensor]
"""Sums a float64 tensor over the data-parallel ranks. Collective: a rank without rows calls it too."""


def no_reduce(local: Tensor) -> Tensor:
    """The sum over ranks when there is one."""
    return local


@dataclass(frozen=True)
class Samples:
    """What one rank has of a step, packed; the rows of a prompt are together.

    A trajectory counts as one row, however many it has: its response tokens follow one another.
    """

    rewards: Tensor  # float64 [rows]: with every penalty, the KL summed over the row included
    token_level_rewards: Tensor  # float64 [tokens]: the same, spread over the actions
    group_ids: Tensor  # int64 [rows]
    row: Tensor  # int64 [tokens], ascending
    mask: Tensor  # bool [tokens]: actions
    columns: Mapping[str, Tensor]  # what the estimator reads

    @property
    def num_rows(self) -> int:
        return len(self.rewards)

    def on_actions(self, by_row: Tensor) -> Tensor:
        """A number of each row on all its actions, 0 at observations. by_row: [rows]. Returns [tokens]."""
        return torch.where(self.mask, by_row[self.row], 0.0)


@dataclass(frozen=True)
class Advantages:
    """Per response token, 0 at observations."""

    advantages: Tensor  # [tokens]
    returns: Tensor | None = None  # [tokens]: what the critic is fitted to, where there is one
    kinds: Tensor | None = None  # int64 [tokens]: tokens of different kinds are whitened apart


class AdvantageEstimator(Protocol):
    """An estimator as the catalogue and `module:function` know it. `reduce` sums over ranks."""

    def __call__(self, samples: Samples, options: AdvantageSpec, reduce: Reduce, /) -> Advantages: ...


ADVANTAGES: Registry[AdvantageEstimator] = Registry("advantage estimator")
