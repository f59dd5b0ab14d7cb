"""What every policy loss gets and gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from ..registry import Registry

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import LossSpec

    from ..advantages import Reduce


@dataclass(frozen=True)
class PolicyTokens:
    """The action tokens of one micro-batch, packed; observations and masked rows are taken out before."""

    log_probs: Tensor  # [tokens], differentiable: of the current policy
    old_log_probs: Tensor  # [tokens]: of the policy at the start of the step
    advantages: Tensor  # [tokens]
    row: Tensor  # int64 [tokens], ascending; of a trajectory that has several, they are one row
    num_rows: int  # of the micro-batch: `row` is below it, and not every row has an action token
    columns: Mapping[str, Tensor] = field(default_factory=dict)  # [tokens] each: what the loss reads or prepared


@dataclass(frozen=True)
class PolicyTokenLosses:
    """Losses per action token, and indicators reported as fractions of tokens, `policy/<name>`."""

    losses: Tensor  # [tokens], differentiable
    indicators: Mapping[str, Tensor] = field(default_factory=dict)  # bool [tokens] each


class PolicyLoss(Protocol):
    """A policy loss as the catalogue and `module:function` know it."""

    def __call__(self, tokens: PolicyTokens, options: LossSpec, /) -> PolicyTokenLosses: ...


POLICY_LOSSES: Registry[PolicyLoss] = Registry("policy loss")


@dataclass(frozen=True)
class MiniBatchTokens:
    """This rank's action tokens of one mini-batch, before its update."""

    old_log_probs: Tensor  # float64 [tokens]
    advantages: Tensor  # float64 [tokens]
    row_ids: Tensor  # int64 [tokens]: the job's number of the row, or of its trajectory's first
    positions: Tensor  # int64 [tokens]: place in the response, or among the actions of the trajectory


@runtime_checkable
class PreparedPolicyLoss(Protocol):
    """A policy loss that looks at the whole mini-batch once, before it is cut into micro-batches.

    What `prepare` returns, [tokens] by name, is in `PolicyTokens.columns` if the loss registered it as `reads`. Called
    on every rank, with no token where a rank has none; `reduce` sums over ranks.
    """

    def prepare(
        self, tokens: MiniBatchTokens, options: LossSpec, reduce: Reduce, seed: int, /
    ) -> Mapping[str, Tensor]: ...

    def __call__(self, tokens: PolicyTokens, options: LossSpec, /) -> PolicyTokenLosses: ...
