"""Importance sampling corrections: for rows that another policy drew than the one that the update begins with.

Rows were drawn by the rollout's policy μ; the update takes them for draws of π_old, which has the same weights in other
arithmetic, and with `rollout.maxStaleness` newer ones. x = log π_old - log μ of a token, and w the ratio at the chosen
level:

    Token              w_t = exp(x_t)
    Sequence           w_t = exp(Σ_row x), the same for all tokens of a row
    SequenceGeometric  w_t = exp(mean_row x), the same for all tokens of a row

Rows of one trajectory are one row here. With `staleOnly` x = 0 for tokens that the newest weights drew, so that w is of
the others alone.

Computed once per step, before mini-batches are cut, and always detached. Observations have w = 1 and are nowhere
counted. How off-policy the update itself becomes is the policy loss's business (π / π_old); this is not mixed in: both
together are decoupled PPO, https://arxiv.org/abs/2505.24298, where π_old is called proximal and μ behaviour policy, and
tokens with w above a cap count for nothing: ICEPOP with the bounds 0 and cap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rljob_worker.metrics import scalars
from rljob_worker.metrics.scalars import Scalar

from .advantages import Reduce, no_reduce
from .masking import action_positions, scatter_actions
from .metric_accumulator import MetricAccumulator
from .mismatch import add_mismatch_metrics
from .ratios import LOG_LIMIT
from .segments import segment_mean, segment_sum

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import CorrectionSpec


@dataclass(frozen=True)
class Correction:
    """Per response token, 0 at observations."""

    weights: Tensor  # [tokens]: what the policy loss is multiplied by
    keep: Tensor  # bool [tokens]: the actions that stay in the loss and in its denominators


def correct(
    old_log_probs: Tensor,
    rollout_log_probs: Tensor,
    mask: Tensor,
    row: Tensor,
    num_rows: int,
    spec: CorrectionSpec,
    reduce: Reduce = no_reduce,
    *,
    age: Tensor | None = None,
) -> tuple[Correction, dict[str, Scalar]]:
    """Importance weights, the tokens that stay, and metrics of the mismatch.

    TruncatedImportance  weight clip(w, lower, upper), all stay
    MaskedImportance     weight w, those with w in [lower, upper] stay
    ICEPOP               weight w where w in [lower, upper], else 0; all stay, also in the denominators. The paper has
                         level Token, and a job may ask for no other
    SequenceRejection    weight 1, rows with w in [lower, upper] stay; of their tokens' own w with level Token: all

    Truncated and masked importance sampling https://fengyao.notion.site/off-policy-rl, ICEPOP
    https://arxiv.org/abs/2510.18855, geometric mean of a row https://richardli.xyz/rl-collapse
    old_log_probs, rollout_log_probs: [tokens]. mask: [tokens], not 0 at actions; other tokens are not read. row: int64
    [tokens], ascending. reduce: sums over ranks, called once. age: int64 [tokens], updates behind the newest weights,
    which `staleOnly` needs. Ratios are cut at e^±20.
    """
    at = action_positions(mask)
    action_row = row.index_select(0, at)
    old, rollout = (item.detach().index_select(0, at).double() for item in (old_log_probs, rollout_log_probs))
    log_ratio = old - rollout
    if spec.stale_only:
        assert age is not None, "staleOnly goes by the ages of tokens"
        log_ratio = torch.where(age.index_select(0, at) > 0, log_ratio, 0.0)
    ratio = _LEVELS[spec.level](log_ratio, action_row, num_rows)
    inside = (ratio >= spec.lower) & (ratio <= spec.upper)
    weights, keep = _METHODS[spec.method](ratio, inside, action_row, num_rows, spec)
    correction = Correction(
        scatter_actions(weights, at, len(mask)).to(old_log_probs.dtype),
        scatter_actions(keep, at, len(mask)),
    )
    totals = MetricAccumulator()
    add_mismatch_metrics(totals, old, rollout, ratio)
    return correction, totals.scalars() | _metrics(inside, weights * keep, reduce)


def _bounded(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_LIMIT, LOG_LIMIT).exp()


def _token(log_ratio: Tensor, row: Tensor, num_rows: int) -> Tensor:
    return _bounded(log_ratio)


def _sequence(log_ratio: Tensor, row: Tensor, num_rows: int) -> Tensor:
    return _bounded(segment_sum(log_ratio, row, num_rows))[row]


def _sequence_geometric(log_ratio: Tensor, row: Tensor, num_rows: int) -> Tensor:
    return _bounded(segment_mean(log_ratio, row, num_rows))[row]


_LEVELS = {"Token": _token, "Sequence": _sequence, "SequenceGeometric": _sequence_geometric}


def _truncated(
    ratio: Tensor, inside: Tensor, row: Tensor, num_rows: int, spec: CorrectionSpec
) -> tuple[Tensor, Tensor]:
    return ratio.clamp(spec.lower, spec.upper), torch.ones_like(inside)


def _masked(ratio: Tensor, inside: Tensor, row: Tensor, num_rows: int, spec: CorrectionSpec) -> tuple[Tensor, Tensor]:
    return ratio, inside


def _icepop(ratio: Tensor, inside: Tensor, row: Tensor, num_rows: int, spec: CorrectionSpec) -> tuple[Tensor, Tensor]:
    return torch.where(inside, ratio, 0.0), torch.ones_like(inside)


def _rejected(ratio: Tensor, inside: Tensor, row: Tensor, num_rows: int, spec: CorrectionSpec) -> tuple[Tensor, Tensor]:
    num_outside = segment_sum((~inside).long(), row, num_rows)
    return torch.ones_like(ratio), (num_outside == 0)[row]


_METHODS = {
    "TruncatedImportance": _truncated,
    "MaskedImportance": _masked,
    "ICEPOP": _icepop,
    "SequenceRejection": _rejected,
}


def _metrics(inside: Tensor, effective: Tensor, reduce: Reduce) -> dict[str, Scalar]:
    """What was done about it; fractions and the effective sample size are of tokens. effective: [actions], the weights
    with which they enter the loss.

    (Σ w)² / (N · Σ w²), 1 where all weigh the same
    """
    totals = MetricAccumulator()
    totals.mean_of("mismatch/fraction_truncated", ~inside & (effective > 0.0))
    totals.mean_of("mismatch/fraction_masked", effective == 0.0)
    totals.mean_of("mismatch/weight", effective)
    moments = torch.stack([effective.new_tensor(len(effective)), effective.sum(), effective.square().sum()])
    count, total, squares = reduce(moments).tolist()
    size = total * total / (count * squares) if squares > 0.0 else 0.0
    return totals.scalars() | {"mismatch/effective_sample_size": scalars.mean(size)}
